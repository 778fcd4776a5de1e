"""Work of several owners in a few threads."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from completions.grammars.validation.fair_threads import FairThreads

WAIT = 60.0


class Bench:
    """Work that begins as its owner's turn comes, and ends when the test says."""

    def __init__(self, count: int) -> None:
        self.threads = FairThreads(ThreadPoolExecutor(count), count)
        self._changed = threading.Condition()
        self.began: list[str] = []
        self.ends: dict[str, threading.Event] = {}

    def submit(self, owner: int, name: str) -> Future[str]:
        self.ends[name] = threading.Event()
        return self.threads.submit(owner, self._work(name))

    def _work(self, name: str) -> Callable[[], str]:
        def work() -> str:
            with self._changed:
                self.began.append(name)
                self._changed.notify_all()
            assert self.ends[name].wait(WAIT)
            return name

        return work

    def wait_for(self, *names: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.began == [*names], WAIT), self.began


@pytest.fixture
def make() -> Iterator[Callable[[int], Bench]]:
    made: list[Bench] = []

    def bench(count: int) -> Bench:
        made.append(Bench(count))
        return made[-1]

    yield bench
    for each in made:
        each.threads.shut_down()
        for end in each.ends.values():
            end.set()


def test_one_owner_leaves_a_thread_to_others(make: Callable[[int], Bench]) -> None:
    bench = make(2)
    for number in range(5):
        bench.submit(1, f"a{number}")
    bench.wait_for("a0")
    bench.submit(2, "b0")
    bench.wait_for("a0", "b0")


def test_owners_alternate(make: Callable[[int], Bench]) -> None:
    bench = make(1)
    for number in range(3):
        bench.submit(1, f"a{number}")
    bench.submit(2, "b0")
    bench.submit(2, "b1")
    order = ["a0", "a1", "b0", "a2", "b1"]
    for number, name in enumerate(order):
        bench.wait_for(*order[: number + 1])
        bench.ends[name].set()


def test_results_and_errors_reach_the_future(make: Callable[[int], Bench]) -> None:
    threads = make(1).threads
    assert threads.submit(1, lambda: 5).result(WAIT) == 5
    with pytest.raises(ZeroDivisionError):
        threads.submit(1, lambda: 1 // 0).result(WAIT)


def test_cancelled_work_gives_its_turn_to_others(make: Callable[[int], Bench]) -> None:
    bench = make(1)
    bench.submit(1, "a")
    bench.wait_for("a")
    assert bench.submit(2, "b").cancel()
    last = bench.submit(3, "c")
    bench.ends["a"].set()
    bench.wait_for("a", "c")
    bench.ends["c"].set()
    assert last.result(WAIT) == "c"


def test_work_without_end_does_not_hold_up_its_owner(make: Callable[[int], Bench]) -> None:
    bench = make(2)
    endless = bench.submit(1, "endless")
    bench.submit(1, "next")
    bench.wait_for("endless")
    bench.threads.give_up(endless)
    bench.wait_for("endless", "next")
    bench.ends["endless"].set()
    bench.ends["next"].set()
    endless.result(WAIT)
    bench.submit(1, "last")
    bench.wait_for("endless", "next", "last")


def test_waiting_work_is_cancelled_at_the_end(make: Callable[[int], Bench]) -> None:
    bench = make(1)
    bench.submit(1, "a")
    waiting = bench.submit(1, "b")
    bench.threads.shut_down()
    assert waiting.cancelled()
