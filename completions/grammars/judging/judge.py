"""Constraints judged off the event loop, within time, and remembered for a while.

What looks ordinary is judged on a thread with a large stack; what looks costly, and is within the
static caps, in a child process, which may be killed. A small grammar can recurse deeply enough in
native code to overflow an ordinary thread's stack.
"""

import asyncio
import hashlib
import json
import re
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from completions.grammars.constraint import Constraint
from completions.grammars.exceptions import (
    GrammarError,
    GrammarOverloadError,
    GrammarTimeoutError,
)
from completions.grammars.judging.children import (
    START_SECONDS,
    Children,
    step_back,
    too_busy,
    too_slow,
)
from completions.grammars.judging.examination import Question, Verdict, examine, screened
from completions.grammars.limits import DEFAULT_LIMITS, Limits, depth
from completions.grammars.tokens import TokenSource

T = TypeVar("T")

STACK_BYTES = 256 * 1024 * 1024
"""Address space, not memory: only what is used gets pages. As much as an engine's compiler has."""
THREADS = 2
FAILURE_SECONDS = 60.0
"""How long a refusal is remembered."""

# Above these a constraint is judged in a child process.
ORDINARY_BYTES = 16 * 1024
ORDINARY_DEPTH = 24
ORDINARY_COUNT = 500
"""In braces, as in `x{500}`."""
ORDINARY_REFERENCES = 50
ORDINARY_PARENTHESES = 200
ORDINARY_MULTIPLES = 1
"""Several `multipleOf` are multiplied by llguidance, beyond its own limits on time and memory."""
ORDINARY_PATTERNS_BYTES = 1_000
"""With `patternProperties`, of which llguidance compares each with each."""
_HIDDEN = ("%json", "\\\\u")
"""In a text, a schema that the static caps do not see, and escapes that hide what was counted."""

_ENVELOPE = 2_000
"""Bytes of a question around its constraint, at most."""


class VerdictCache:
    """Least recently used out first; bounded by about the bytes that it occupies."""

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
    """One per process. Equal questions that are asked at once are examined once."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self._cache = VerdictCache(limits.cache_bytes)
        self._children = Children(limits)
        self._threads = _big_stack_threads(THREADS)
        self._askers = ThreadPoolExecutor(limits.processes, "grammar-child")
        self._examining: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Task[Verdict]] = {}

    async def judge(self, constraint: Constraint, tokens: TokenSource | None = None) -> str:
        """The llguidance grammar text of a constraint. Raises GrammarError."""
        return (await self.ask(Question(constraint, tokens))).result()

    async def ask(self, question: Question) -> Verdict:
        """Faults of all kinds are in the verdict."""
        try:
            written = canonical(question)
        except RecursionError:
            return _refusal(GrammarError("nested too deeply"), question)
        if _least_bytes(written) - len(question.text or "") > self.limits.max_bytes + _ENVELOPE:
            message = f"longer than {self.limits.max_bytes} bytes"
            return _refusal(GrammarError(message), question)
        key = hashlib.sha256(written.encode()).hexdigest()
        verdict = self._cache.get(key)
        if verdict is None:
            verdict = await self._examined_once(key, question, written)
        return verdict

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._askers.shutdown(wait=False, cancel_futures=True)
        self._children.close()

    async def _examined_once(self, key: str, question: Question, written: str) -> Verdict:
        place = asyncio.get_running_loop(), key
        task = self._examining.get(place)
        if task is None:
            task = self._examining[place] = asyncio.create_task(self._examined(question, written))
            task.add_done_callback(lambda _: self._examining.pop(place))
        # Shielded: when one who asked hangs up, the others still want the answer.
        verdict = await asyncio.shield(task)
        if not isinstance(verdict.error, GrammarOverloadError | GrammarTimeoutError):
            self._cache.put(key, verdict)
        return verdict

    async def _examined(self, question: Question, written: str) -> Verdict:
        try:
            if is_ordinary(question, written):
                return await self._run(self._threads, lambda: examine(question, self.limits))
            refused = await self._run(self._threads, lambda: screened(question, self.limits))
            if refused is not None:
                return refused
            return await self._run(self._askers, lambda: self._children.ask(question))
        except GrammarError as error:
            return _refusal(error, question)

    async def _run(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        """What the work comes to. Raises GrammarOverloadError, GrammarTimeoutError."""
        clocks: list[_Clock] = []

        def run() -> T:
            clocks.append(_Clock())
            return work()

        future = asyncio.wrap_future(pool.submit(run))
        asked, seconds = time.monotonic(), self.limits.seconds
        # A child's first question may take longer, and its end is seen to where it is asked.
        patience = self.limits.patience + (START_SECONDS + 1 if pool is self._askers else 0)
        while True:
            done, _ = await asyncio.wait({future}, timeout=seconds / 4)
            if done:
                return future.result()
            # A thread cannot be stopped, but llguidance's own limits end it.
            if clocks and clocks[0].used() > seconds:
                raise too_slow(self.limits)
            since = clocks[0].began if clocks else asked
            if time.monotonic() - since > patience:
                future.cancel()
                raise too_busy()


class _Clock:
    """What a thread has used of a processor since this was made there."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._thread = time.pthread_getcpuclockid(threading.get_ident())
        self._before = time.clock_gettime(self._thread)

    def used(self) -> float:
        """Seconds. For any thread to call while that one lives."""
        return time.clock_gettime(self._thread) - self._before


_COUNTS = re.compile(r"\{\s*(\d+)\s*(?:,\s*(\d*)\s*)?\}")


def is_ordinary(question: Question, written: str) -> bool:
    """Whether a constraint is so small and plain that a thread may judge it."""
    if len(written) > ORDINARY_BYTES or written.count("$ref") > ORDINARY_REFERENCES:
        return False
    if written.count("multipleOf") > ORDINARY_MULTIPLES:
        return False
    if "patternProperties" in written and len(written) > ORDINARY_PATTERNS_BYTES:
        return False
    is_pattern = question.constraint.field in ("ebnf", "regex")
    if not is_pattern and any(sign in written for sign in _HIDDEN):
        return False
    counts = [int(digits[-9:]) for pair in _COUNTS.findall(written) for digits in pair if digits]
    return (
        max(counts, default=0) <= ORDINARY_COUNT
        and depth(question.constraint.value, ORDINARY_DEPTH) <= ORDINARY_DEPTH
        and written.count("(") <= ORDINARY_PARENTHESES
    )


def canonical(question: Question) -> str:
    """The order of an object's keys stays: it is the order of the generated properties."""
    return json.dumps(question.to_json(), separators=(",", ":"))


def _least_bytes(written: str) -> int:
    r"""How long what JSON was written for is at least: an escape such as \u0001 stands for one."""
    return len(written) - 5 * written.count("\\")


def _refusal(error: GrammarError, question: Question) -> Verdict:
    error.field = question.constraint.named
    return Verdict(error=error)


def _big_stack_threads(count: int) -> ThreadPoolExecutor:
    """Threads whose stacks are large; the size can only be set for threads yet to start."""
    pool = ThreadPoolExecutor(count, "grammar", initializer=_step_back)
    everyone = threading.Barrier(count + 1)
    before = threading.stack_size(STACK_BYTES)
    try:
        for _ in range(count):
            pool.submit(everyone.wait)
        everyone.wait()
    finally:
        threading.stack_size(before)
    return pool


def _step_back() -> None:
    if sys.platform == "linux":  # elsewhere it would be the whole process
        step_back(threading.get_native_id())
