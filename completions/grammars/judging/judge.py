"""Judging constraints off the event loop, within a time limit, with a cache of verdicts.

An ordinary constraint is judged on a thread, a costly one in a child process, which may be killed.
"""

import asyncio
import hashlib
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from completions.contract.llguidance_threads import big_stack_threads
from completions.grammars.constraint import Constraint
from completions.grammars.exceptions import GrammarError, GrammarOverloadError, GrammarTimeoutError
from completions.grammars.judging.children import START_SECONDS, Children, too_busy, too_slow
from completions.grammars.judging.examination import Question, Verdict, examine, screened
from completions.grammars.judging.fair_threads import FairThreads
from completions.grammars.judging.ordinary import is_ordinary
from completions.grammars.limits import DEFAULT_LIMITS, Limits, too_deep, too_long
from completions.grammars.tokens import TokenSource

logger = logging.getLogger(__name__)

T = TypeVar("T")

THREADS = 2
FAILURE_SECONDS = 60.0
"""How long a refusal is cached."""

_Place = tuple[asyncio.AbstractEventLoop, int, str]
"""Where a question is being examined: the loop, the owner, the question's digest."""
_ENVELOPE = 2_000
"""The most bytes that a question has in addition to its constraint."""


@dataclass(eq=False, slots=True)
class Asker:
    """Whom questions are examined for."""

    owner: int = 0
    """The organization whose turn they wait for."""
    spent: float = 0.0
    """Processor seconds of the examinations so far. A cached verdict costs none."""


class VerdictCache:
    """Verdicts up to a number of bytes; the least recently used goes first."""

    def __init__(self, capacity: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._capacity = capacity
        self._clock = clock
        self._entries: OrderedDict[str, tuple[Verdict, float]] = OrderedDict()
        self._size = 0

    def get(self, key: str) -> Verdict | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        verdict, judged_at = entry
        if verdict.error is not None and self._clock() - judged_at > FAILURE_SECONDS:
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        return verdict

    def put(self, key: str, verdict: Verdict) -> None:
        self._remove(key)
        self._entries[key] = verdict, self._clock()
        self._size += verdict.size()
        while self._size > self._capacity:
            self._remove(next(iter(self._entries)))

    def _remove(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._size -= entry[0].size()


class Judge:
    """Judges for one process. Equal questions asked at the same time are examined once."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self._cache = VerdictCache(limits.cache_bytes)
        self._children = Children(limits)
        self._threads = FairThreads(big_stack_threads(THREADS, "grammar"), THREADS)
        self._stuck: set[Future[Any]] = set()
        askers = ThreadPoolExecutor(limits.processes, "grammar-child")
        self._askers = FairThreads(askers, limits.processes)
        self._examining: dict[_Place, asyncio.Task[Verdict]] = {}

    async def judge(self, constraint: Constraint, tokens: TokenSource | None = None) -> str:
        """The llguidance grammar text of a constraint. Raises GrammarError."""
        return (await self.ask(Question(constraint, tokens))).result()

    async def ask(self, question: Question, asker: Asker | None = None) -> Verdict:
        """The verdict on a question. Errors of all kinds are in it."""
        asker = asker or Asker()
        try:
            written = canonical(question)
        except RecursionError:
            return _refusal(too_deep(), question)
        # An escape such as \\u0001 stands for at least one byte.
        least_bytes = len(written) - 5 * written.count("\\")
        if least_bytes - len(question.text or "") > self.limits.max_bytes + _ENVELOPE:
            value = question.constraint.value
            size = len(value.encode()) if isinstance(value, str) else least_bytes
            return _refusal(too_long(size, self.limits), question)
        key = hashlib.sha256(written.encode()).hexdigest()
        verdict = self._cache.get(key)
        if verdict is None:
            verdict = await self._examined_once(key, question, written, asker)
        return verdict

    def close(self) -> None:
        self._threads.shutdown()
        self._askers.shutdown()
        self._children.close()

    async def _examined_once(
        self, key: str, question: Question, written: str, asker: Asker
    ) -> Verdict:
        # By owner, since each waits for its own turn.
        place = asyncio.get_running_loop(), asker.owner, key
        task = self._examining.get(place)
        if task is None:
            examining = self._examined(question, written, asker)
            task = self._examining[place] = asyncio.create_task(examining)
            task.add_done_callback(lambda _: self._examining.pop(place))
        # Shielded: if one caller is cancelled, the others still wait for the answer.
        verdict = await asyncio.shield(task)
        if not isinstance(verdict.error, GrammarOverloadError | GrammarTimeoutError):
            self._cache.put(key, verdict)
        return verdict

    async def _examined(self, question: Question, written: str, asker: Asker) -> Verdict:
        try:
            if len(self._stuck) < THREADS:
                if is_ordinary(question, written):
                    return await self._run(asker, lambda: examine(question, self.limits))
                refused = await self._run(asker, lambda: screened(question, self.limits))
                if refused is not None:
                    return refused
            return await self._ask_child(question, asker)
        except GrammarError as error:
            return _refusal(error, question)

    async def _ask_child(self, question: Question, asker: Asker) -> Verdict:
        """A child's verdict. Raises GrammarOverloadError."""

        def ask() -> Verdict:
            verdict, seconds = self._children.ask(question)
            asker.spent += seconds
            return verdict

        return await self._run(asker, ask, in_child=True)

    async def _run(self, asker: Asker, work: Callable[[], T], *, in_child: bool = False) -> T:
        """The result of the work. Raises GrammarOverloadError and GrammarTimeoutError."""
        clocks: list[_Clock] = []

        def run() -> T:
            clocks.append(clock := _Clock())
            try:
                return work()
            finally:
                asker.spent += clock.used()

        pool = self._askers if in_child else self._threads
        running = pool.submit(asker.owner, run)
        future = asyncio.wrap_future(running)
        asked, seconds = time.monotonic(), self.limits.seconds
        # A child's first question may take longer; `Child.ask` limits its time.
        patience = self.limits.patience + (START_SECONDS + 1 if in_child else 0)
        while True:
            done, _ = await asyncio.wait({future}, timeout=seconds / 4)
            if done:
                return future.result()
            is_slow = bool(clocks) and clocks[0].used() > seconds
            since = clocks[0].began if clocks else asked
            if is_slow or time.monotonic() - since > patience:
                if clocks and not in_child:
                    self._give_up(running)
                else:
                    future.cancel()
                raise too_slow(self.limits) if is_slow else too_busy()

    def _give_up(self, running: "Future[Any]") -> None:
        """Count a thread as stuck until it ends, which may be after the event loop that waited for
        it. llguidance's limits end nearly all of its work, but nothing else can stop a thread."""
        self._stuck.add(running)
        self._threads.give_up(running)
        running.add_done_callback(self._stuck.discard)
        if len(self._stuck) == THREADS:
            logger.error("all threads that judge grammars are stuck; child processes judge instead")


class _Clock:
    """The processor time of the thread that made it, from then on."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._thread = time.pthread_getcpuclockid(threading.get_ident())
        self._before = time.clock_gettime(self._thread)

    def used(self) -> float:
        """Processor seconds so far. Any thread may call it while the other one lives."""
        return time.clock_gettime(self._thread) - self._before


def canonical(question: Question) -> str:
    """The JSON of a question. Keys keep their order: properties are generated in it."""
    return json.dumps(question.to_json(), separators=(",", ":"))


def _refusal(error: GrammarError, question: Question) -> Verdict:
    error.field = question.constraint.named
    return Verdict(error=error)
