"""Validates constraints off the event loop, within a time limit, with a cache of results.

An ordinary constraint is validated on a thread, a costly one in a child process, which may be
killed.
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

from completions.contract.llguidance_threads import make_big_stack_threads
from completions.grammars.constraint import Constraint
from completions.grammars.exceptions import GrammarError, GrammarOverloadError, GrammarTimeoutError
from completions.grammars.lengths import LeastTokens, find_least
from completions.grammars.limits import DEFAULT_LIMITS, Limits, make_depth_error, make_length_error
from completions.grammars.tokens import TokenSource
from completions.grammars.validation.children import (
    START_SECONDS,
    Children,
    make_overload_error,
    make_timeout_error,
)
from completions.grammars.validation.examination import (
    ValidationRequest,
    ValidationResult,
    find_refusal,
    validate,
)
from completions.grammars.validation.fair_threads import FairThreads
from completions.grammars.validation.ordinary import is_ordinary

logger = logging.getLogger(__name__)

T = TypeVar("T")

THREADS = 2
FAILURE_SECONDS = 60.0
"""How long a refusal is cached."""

_Slot = tuple[asyncio.AbstractEventLoop, int, str]
"""Where a request is being examined: the loop, the owner, the request's digest."""
_ENVELOPE = 2_000
"""The most bytes that a request has in addition to its constraint."""


@dataclass(eq=False, slots=True)
class Caller:
    """Whom requests are examined for."""

    owner: int = 0
    """The organization whose turn they wait for."""
    spent: float = 0.0
    """Processor seconds of the examinations so far. A cached result costs none."""


class ResultCache:
    """Results up to a number of bytes; the least recently used goes first."""

    def __init__(self, capacity: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._capacity = capacity
        self._clock = clock
        self._entries: OrderedDict[str, tuple[ValidationResult, float]] = OrderedDict()
        self._size = 0

    def get(self, key: str) -> ValidationResult | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        result, cached_at = entry
        if result.error is not None and self._clock() - cached_at > FAILURE_SECONDS:
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        return result

    def put(self, key: str, result: ValidationResult) -> None:
        self._remove(key)
        self._entries[key] = result, self._clock()
        self._size += result.measure_size()
        while self._size > self._capacity:
            self._remove(next(iter(self._entries)))

    def _remove(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._size -= entry[0].measure_size()


class Validator:
    """The validator of one process. Equal requests at the same time are validated once."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self._cache = ResultCache(limits.cache_bytes)
        self._children = Children(limits)
        self._threads = FairThreads(make_big_stack_threads(THREADS, "grammar"), THREADS)
        self._stuck: set[Future[object]] = set()
        callers = ThreadPoolExecutor(limits.processes, "grammar-child")
        self._callers = FairThreads(callers, limits.processes)
        self._examining: dict[_Slot, asyncio.Task[ValidationResult]] = {}

    async def validate_grammar(
        self, constraint: Constraint, tokens: TokenSource | None = None
    ) -> str:
        """Return the llguidance grammar text of a constraint. Raises GrammarError."""
        return (await self.validate(ValidationRequest(constraint, tokens))).get_grammar()

    async def validate(
        self, request: ValidationRequest, caller: Caller | None = None
    ) -> ValidationResult:
        """Validate a request. Errors of all kinds are in it."""
        caller = caller or Caller()
        try:
            text = canonicalize(request)
        except RecursionError:
            return _make_refusal(make_depth_error(), request)
        # An escape such as \\u0001 stands for at least one byte.
        least_bytes = len(text) - 5 * text.count("\\")
        if least_bytes - len(request.text or "") > self.limits.max_bytes + _ENVELOPE:
            value = request.constraint.value
            size = len(value.encode()) if isinstance(value, str) else least_bytes
            return _make_refusal(make_length_error(size, self.limits), request)
        key = hashlib.sha256(text.encode()).hexdigest()
        result = self._cache.get(key)
        if result is None:
            result = await self._validate_once(key, request, text, caller)
        return result

    async def find_least(
        self, constraint: Constraint, grammar: str, tokens: TokenSource, enough: int, caller: Caller
    ) -> LeastTokens:
        """Return what is known of the shortest text of a constraint's validated grammar; nothing if
        that takes too long. Raises GrammarOverloadError."""
        request = ValidationRequest(constraint, tokens)

        def ask() -> LeastTokens:
            least, seconds = self._children.find_least(grammar, tokens, enough)
            caller.spent += seconds
            return least

        try:
            if len(self._stuck) < THREADS and is_ordinary(request, canonicalize(request)):
                return await self._run(caller, lambda: find_least(grammar, tokens, enough))
            return await self._run(caller, ask, in_child=True)
        except GrammarTimeoutError:
            return LeastTokens(0, None)

    def close(self) -> None:
        self._threads.shut_down()
        self._callers.shut_down()
        self._children.close()

    async def _validate_once(
        self, key: str, request: ValidationRequest, text: str, caller: Caller
    ) -> ValidationResult:
        # By owner, since each waits for its own turn.
        slot = asyncio.get_running_loop(), caller.owner, key
        task = self._examining.get(slot)
        if task is None:
            examining = self._validate(request, text, caller)
            task = self._examining[slot] = asyncio.create_task(examining)
            task.add_done_callback(lambda _: self._examining.pop(slot))
        # Shielded: if one caller is cancelled, the others still wait for the answer.
        result = await asyncio.shield(task)
        if not isinstance(result.error, GrammarOverloadError | GrammarTimeoutError):
            self._cache.put(key, result)
        return result

    async def _validate(
        self, request: ValidationRequest, text: str, caller: Caller
    ) -> ValidationResult:
        try:
            if len(self._stuck) < THREADS:
                if is_ordinary(request, text):
                    return await self._run(caller, lambda: validate(request, self.limits))
                refused = await self._run(caller, lambda: find_refusal(request, self.limits))
                if refused is not None:
                    return refused
            return await self._validate_in_child(request, caller)
        except GrammarError as error:
            return _make_refusal(error, request)

    async def _validate_in_child(
        self, request: ValidationRequest, caller: Caller
    ) -> ValidationResult:
        """Return a child's result. Raises GrammarOverloadError."""

        def ask() -> ValidationResult:
            result, seconds = self._children.ask(request)
            caller.spent += seconds
            return result

        return await self._run(caller, ask, in_child=True)

    async def _run(self, caller: Caller, work: Callable[[], T], *, in_child: bool = False) -> T:
        """Return the result of the work. Raises GrammarOverloadError and GrammarTimeoutError."""
        clocks: list[_Clock] = []

        def run() -> T:
            clocks.append(clock := _Clock())
            try:
                return work()
            finally:
                caller.spent += clock.read_seconds()

        pool = self._callers if in_child else self._threads
        running = pool.submit(caller.owner, run)
        future = asyncio.wrap_future(running)
        started, seconds = time.monotonic(), self.limits.seconds
        # A child's first request may take longer; `Child.ask` limits its time.
        patience = self.limits.patience + (START_SECONDS + 1 if in_child else 0)
        while True:
            done, _ = await asyncio.wait({future}, timeout=seconds / 4)
            if done:
                return future.result()
            is_slow = bool(clocks) and clocks[0].read_seconds() > seconds
            since = clocks[0].began if clocks else started
            if is_slow or time.monotonic() - since > patience:
                if clocks and not in_child:
                    self._give_up(running)
                else:
                    future.cancel()
                raise make_timeout_error(self.limits) if is_slow else make_overload_error()

    def _give_up(self, running: "Future[Any]") -> None:
        """Count a thread as stuck until it ends, possibly after its event loop. Nothing can stop a
        thread; llguidance's limits end nearly all of its work."""
        self._stuck.add(running)
        self._threads.give_up(running)
        running.add_done_callback(self._stuck.discard)
        if len(self._stuck) == THREADS:
            logger.error(
                "all threads that validate grammars are stuck; child processes validate instead"
            )


class _Clock:
    """The processor time of the thread that made it, from then on."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._thread = time.pthread_getcpuclockid(threading.get_ident())
        self._before = time.clock_gettime(self._thread)

    def read_seconds(self) -> float:
        """Return processor seconds so far. Any thread may call it while the other one lives."""
        return time.clock_gettime(self._thread) - self._before


def canonicalize(request: ValidationRequest) -> str:
    """Return the JSON of a request. Keys keep their order: properties are generated in it."""
    return json.dumps(request.to_json(), separators=(",", ":"))


def _make_refusal(error: GrammarError, request: ValidationRequest) -> ValidationResult:
    error.field = request.constraint.error_path
    return ValidationResult(error=error)
