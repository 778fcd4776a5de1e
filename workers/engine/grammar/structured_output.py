"""Grammars to token masks, through llguidance: compile, mask, advance, and tell errors apart."""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import llguidance
import numpy as np
import torch
from numpy.typing import NDArray

from completions.contract import llguidance_tokenizer
from completions.contract.llguidance_limits import (
    ENGINE_LIMITS,
    TOO_MANY_ITEMS,
    TOO_MANY_STATES,
)
from workers.engine.exceptions import EngineError, GrammarError
from workers.engine.grammar.mask import Bits, GrammarMask, allow_only, forbid
from workers.engine.sequence import Sequence
from workers.engine.text.detokenizer import Vocabulary

_COMPILE_STACK_BYTES = 256 * 2**20
"""llguidance compiles recursively; a long chain of references overflows an ordinary stack."""

_COMPILERS = 2
"""Threads, so that a grammar that takes half a second to compile does not hold up all others."""
_QUICK_FILL_SECONDS = 0.001
"""Of the processor, for the masks of a step that are not worth a thread beside the forward's."""
_SLOW_STEPS = 16
"""After masks that took longer, how many steps fill theirs beside the forward."""
_SLOW_FILL_SECONDS = 0.01
"""After a mask of a step that took longer, each row's is timed."""
_SLOW_SECONDS = 0.005
_PATIENCE_SECONDS = 0.25
"""Of one processor, that masks slower than the above may take a choice in all: the whole batch
waits for them."""


class GrammarMatcher:
    """A choice's position in its grammar. Used by one thread at a time.

    Where only one text may come next, its tokens are planned as a whole, cut as the model's
    tokenizer cuts that text; the last token is left open if what follows could merge with it. The
    plan depends on the tokens consumed alone, so that a run which resumes inside it goes on alike.
    """

    def __init__(
        self, matcher: llguidance.LLMatcher, only_empty: bool = False, plans: bool = True
    ) -> None:
        self.matcher = matcher
        self._only_empty = only_empty
        self._plans = plans and not only_empty
        self._planned: deque[int] | None = None  # unknown since the last token
        self._slow_seconds = 0.0

    @property
    def forced(self) -> int | None:
        """The token that the grammar leaves no choice about, if it is so."""
        if self._planned is None:
            self._planned = deque(self._plan() if self._plans else ())
        return self._planned[0] if self._planned else None

    def _plan(self) -> list[int]:
        began = time.thread_time()
        planned: list[int] = self.matcher.compute_ff_tokens()
        self._spend(time.thread_time() - began)
        return planned

    def fill(self, address: int, num_bytes: int) -> None:
        """Write the mask there, and note how long it took."""
        began = time.thread_time()
        self.matcher.unsafe_compute_mask_ptr(address, num_bytes)
        self._spend(time.thread_time() - began)

    def _spend(self, seconds: float) -> None:
        if seconds > _SLOW_SECONDS:
            self._slow_seconds += seconds

    @property
    def is_complete(self) -> bool:
        """Whether nothing more may follow. Raises GrammarError: a matcher in error, or one that
        gave up, says so too."""
        stopped = self.matcher.is_stopped()
        if stopped or self._slow_seconds:
            self.check()
        if self._only_empty:
            return True
        if not stopped:
            return False
        if not self.matcher.is_accepting():
            raise GrammarError(f"The grammar stopped early: {self.matcher.stop_reason()}")
        return True

    def consume(self, token_id: int) -> bool:
        """Advance; True once nothing more may follow. Raises GrammarError."""
        planned = self._planned if token_id == self.forced else None
        if planned:
            planned.popleft()
        self._planned = planned or None
        self.matcher.consume_token(token_id)
        return self.is_complete

    def check(self) -> None:
        """Raise GrammarError if the matcher is in its error state, which it never leaves, or took
        too much time from others."""
        if (fault := self.fault()) is not None:
            raise fault

    def fault(self) -> GrammarError | None:
        if self.matcher.is_error():
            return GrammarError(_explain(self.matcher.get_error()))
        if self._slow_seconds > _PATIENCE_SECONDS:
            return GrammarError("The grammar takes too long to follow: it is too ambiguous")
        return None


class StructuredOutput:
    """Compiles grammars on threads of its own, and fills masks.

    Masks that take long are filled while the model runs. Where it runs on the CPU, quick ones are
    filled before, by the step's own thread: another would take a core away from the forward, whose
    threads wait for each other.

    Matchers of different requests share nothing: llguidance lets copies share a lexer, and a
    lexer that runs into a limit fails for all of them.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        eos_token_ids: frozenset[int],
        num_threads: int,
        jump_forward: bool = True,
        device: torch.device | None = None,
    ) -> None:
        """``device`` is where the logits are, if not on the CPU."""
        self._eos_token_ids = eos_token_ids
        self._device = device or torch.device("cpu")
        self._jump_forward = jump_forward
        self._tokenizer = llguidance_tokenizer.build(
            vocabulary.bytes, vocabulary.token_bytes, sorted(eos_token_ids)
        )
        self._executor = llguidance.LLExecutor(num_threads=num_threads)
        self._words = -(-vocabulary.size // 32)
        self._filler = ThreadPoolExecutor(1, thread_name_prefix="grammar-mask")
        self._times_rows = False
        self._slow_steps = 0
        self._bits: Bits = np.empty((0, self._words), dtype=np.int32)
        self._real = _real_tokens(vocabulary, self._words)
        self._compiler = _big_stack_threads(_COMPILERS)

    def compile(
        self,
        grammar: str,
        count: int,
        done: Callable[[list[GrammarMatcher] | EngineError], None],
    ) -> None:
        """Compile elsewhere and hand ``done`` that many matchers, or the error."""
        self._compiler.submit(lambda: done(self._compile(grammar, count)))

    def start_mask(self, rows: list[Sequence]) -> "Future[GrammarMask] | None":
        """Fill masks for those of a step's rows that have a grammar, if any does, or begin to."""
        constrained = [
            (row, seq, seq.choice.grammar)
            for row, seq in enumerate(rows)
            if isinstance(seq.choice.grammar, GrammarMatcher)
        ]
        if not constrained:
            return None
        if self._device.type != "cpu" or self._slow_steps:
            self._slow_steps = max(0, self._slow_steps - 1)
            return self._filler.submit(self._fill, constrained, self._executor)
        filled: Future[GrammarMask] = Future()
        began = time.thread_time()
        filled.set_result(self._fill(constrained))
        if time.thread_time() - began > _QUICK_FILL_SECONDS:
            self._slow_steps = _SLOW_STEPS
        return filled

    def close(self) -> None:
        self._filler.shutdown(wait=False)
        self._compiler.shutdown(wait=False, cancel_futures=True)

    def _compile(self, grammar: str, count: int) -> list[GrammarMatcher] | EngineError:
        try:
            first = llguidance.LLMatcher(
                self._tokenizer, grammar, log_level=0, limits=ENGINE_LIMITS
            )
            # The first mask is the dearest, and shows grammars too complex.
            allowed = np.frombuffer(first.compute_bitmask(), dtype=np.uint8)
            only_empty = first.is_accepting() and self._is_eos_only(allowed)
            matchers = [first, *(first.deep_copy() for _ in range(count - 1))]
            wrapped = [GrammarMatcher(m, only_empty, self._jump_forward) for m in matchers]
            wrapped[0].check()
        except GrammarError as error:
            return error
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this request's fault
            return GrammarError(str(error))
        return wrapped

    def _is_eos_only(self, allowed: NDArray[np.uint8]) -> bool:
        if np.bitwise_count(allowed).sum() > len(self._eos_token_ids):
            return False
        ids = np.unpackbits(allowed, bitorder="little").nonzero()[0]
        return self._eos_token_ids.issuperset(ids.tolist())

    def _fill(
        self,
        constrained: list[tuple[int, Sequence, GrammarMatcher]],
        executor: llguidance.LLExecutor | None = None,
    ) -> GrammarMask:
        bits = self._cleared_bits(len(constrained))
        faults = self._compute([matcher for _, _, matcher in constrained], bits, executor)
        avoided = []
        for i, (_, seq, matcher) in enumerate(constrained):
            try:
                if (token_id := matcher.forced) is not None:
                    allow_only(bits[i], token_id)
                else:
                    avoided.append((i, seq.choice.stop_checker.ids_to_avoid()))
            except Exception as error:  # noqa: BLE001 - ends this row's request, not the step
                faults[i] = error
        forbid(bits, avoided)
        rows = [row for row, _, _ in constrained]
        return GrammarMask.on(
            self._device, rows, bits, {rows[i]: error for i, error in faults.items()}
        )

    def _cleared_bits(self, num_rows: int) -> Bits:
        """The same memory each time: fresh pages in every step would cost more than the masks."""
        if len(self._bits) < num_rows:
            self._bits = np.empty((num_rows, self._words), dtype=np.int32)
        bits = self._bits[:num_rows]
        bits.fill(0)
        return bits

    def _compute(
        self,
        matchers: list[GrammarMatcher],
        bits: Bits,
        executor: llguidance.LLExecutor | None = None,
    ) -> dict[int, Exception]:
        """Fill ``bits`` [len(matchers), words]; return the errors of the rows that failed."""
        began = time.perf_counter()
        faults: dict[int, Exception] = {}
        if executor is not None and not self._times_rows:
            try:
                executor.unsafe_compute_mask_ptr(
                    [(m.matcher, i) for i, m in enumerate(matchers)],
                    bits.ctypes.data,
                    bits.strides[0],
                    len(bits),
                )
            except Exception:  # noqa: BLE001 - row by row, the failing ones name themselves
                bits.fill(0)
                faults = self._compute_rows(matchers, bits)
        else:
            faults = self._compute_rows(matchers, bits)
        self._times_rows = time.perf_counter() - began > _SLOW_FILL_SECONDS
        if self._real is not None:
            bits &= self._real
        for i, matcher in enumerate(matchers):
            if i not in faults and (fault := matcher.fault()) is not None:
                faults[i] = fault
        return faults

    def _compute_rows(self, matchers: list[GrammarMatcher], bits: Bits) -> dict[int, Exception]:
        """Fill ``bits`` row by row, so that an error ends the request of its own row only."""
        address, row_bytes = bits.ctypes.data, bits.strides[0]
        faults: dict[int, Exception] = {}
        for i, matcher in enumerate(matchers):
            try:
                if self._times_rows:
                    matcher.fill(address + i * row_bytes, row_bytes)
                else:
                    matcher.matcher.unsafe_compute_mask_ptr(address + i * row_bytes, row_bytes)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this row's fault
                faults[i] = error
        return faults


def _real_tokens(vocabulary: Vocabulary, num_words: int) -> Bits | None:
    """The ids that stand for something, if not all do: a grammar's wildcard means the model's
    padding too."""
    real = np.zeros(num_words * 32, dtype=np.uint8)
    real[list(vocabulary.tokenizer.get_vocab(with_added_tokens=True).values())] = 1
    if real[: vocabulary.size].all():
        return None
    return np.packbits(real, bitorder="little").view(np.int32)


def _big_stack_threads(count: int) -> ThreadPoolExecutor:
    """The size of a stack can only be set for threads yet to start."""
    executor = ThreadPoolExecutor(
        count, thread_name_prefix="grammar-compile", initializer=_step_back
    )
    started = threading.Barrier(count + 1)
    previous = threading.stack_size(_COMPILE_STACK_BYTES)
    try:
        for _ in range(count):
            executor.submit(started.wait)
        started.wait()
    finally:
        threading.stack_size(previous)
    return executor


def _step_back() -> None:
    """Lower the priority of this thread; elsewhere than on Linux it would be the process's."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, 0, min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19))


def _explain(message: str) -> str:
    """What llguidance says, but for advice about limits that a client cannot raise."""
    if TOO_MANY_ITEMS.search(message) or TOO_MANY_STATES.search(message):
        return "The grammar became too complex on the way: it allows too much at once"
    return message
