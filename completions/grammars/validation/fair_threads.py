"""Threads that the owners of work take turns in."""

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _Work(Generic[T]):
    """Work of an owner, and its result."""

    def __init__(self, owner: int, function: Callable[[], T]) -> None:
        self.owner = owner
        self.function = function
        self.future: Future[T] = Future()
        self.holds_turn = True
        """False once it is no longer counted as its owner's."""

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.function()
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class FairThreads:
    """Runner of work in the `count` threads of a pool. Owners alternate, and one thread is left to
    the others, unless there is only one. Any thread may call it."""

    def __init__(self, pool: ThreadPoolExecutor, count: int) -> None:
        self._pool = pool
        self._free = count
        self._per_owner = max(1, count - 1)
        self._lock = threading.Lock()
        self._running: Counter[int] = Counter()
        self._waiting: OrderedDict[int, deque[_Work[Any]]] = OrderedDict()
        self._started: dict[Future[object], _Work[object]] = {}

    def submit(self, owner: int, function: Callable[[], T]) -> Future[T]:
        """Return the future of the function's result. It can be cancelled while it waits."""
        work = _Work(owner, function)
        with self._lock:
            self._waiting.setdefault(owner, deque()).append(work)
            self._start_more()
        return work.future

    def give_up(self, future: Future[object]) -> None:
        """Let the owner's other work go on beside work that may never end."""
        with self._lock:
            work = self._started.get(future)
            if work is not None:
                self._end_turn(work)
                self._start_more()

    def shut_down(self) -> None:
        with self._lock:
            for queue in self._waiting.values():
                for work in queue:
                    work.future.cancel()
            self._waiting.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, work: _Work[object]) -> None:
        work.run()
        with self._lock:
            del self._started[work.future]
            self._end_turn(work)
            self._free += 1
            self._start_more()

    def _end_turn(self, work: _Work[object]) -> None:
        if work.holds_turn:
            work.holds_turn = False
            self._running[work.owner] -= 1

    def _start_more(self) -> None:
        while self._free and (work := self._take_next()) is not None:
            self._free -= 1
            self._running[work.owner] += 1
            self._started[work.future] = work
            self._pool.submit(self._run, work)

    def _take_next(self) -> _Work[object] | None:
        """Take the next work of the owner who has waited longest for a turn."""
        for owner, queue in list(self._waiting.items()):
            while queue and queue[0].future.cancelled():
                queue.popleft()
            if not queue:
                del self._waiting[owner]
            elif self._running[owner] < self._per_owner:
                work = queue.popleft()
                self._waiting.move_to_end(owner)
                return work
        return None
