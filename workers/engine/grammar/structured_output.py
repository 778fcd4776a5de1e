"""Turns grammars into token masks with llguidance: compile, mask and advance."""

import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Rows
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import llguidance
import numpy as np
import torch
from numpy.typing import NDArray

from completions.contract import llguidance_tokenizer
from completions.contract.grammar_ends import EndTokens, is_accepting
from completions.contract.llguidance_limits import ENGINE_LIMITS, TOO_MANY_ITEMS, TOO_MANY_STATES
from completions.contract.llguidance_threads import make_big_stack_threads
from workers.engine.core.bad_words import list_bad_tokens
from workers.engine.core.sequence import Sequence
from workers.engine.core.step import lay_rows
from workers.engine.exceptions import EngineError, GrammarError
from workers.engine.grammar.closing import Closing, ClosingPlan
from workers.engine.grammar.mask import Bits, GrammarMask, allow_only, allow_some, forbid
from workers.engine.text.detokenizer import Vocabulary

_COMPILERS = 2
"""Threads, so that a grammar that takes half a second to compile does not delay the others."""
_QUICK_FILL_SECONDS = 0.006
"""CPU seconds. When a step's masks take longer, the next steps fill theirs beside the forward. On
two cores, filling them there delays the forward by some 4 ms."""
_SLOW_STEPS = 16
"""How many steps after a slow one do so."""
_SLOW_FILL_SECONDS = 0.01
"""When a step's masks take longer, the next step times each row's mask."""
_SLOW_SECONDS = 0.005
"""A mask that takes longer is slow."""
_PATIENCE_SECONDS = 0.25
"""CPU seconds that the slow masks of one choice may take in all: the whole batch waits for them."""


class GrammarMatcher:
    """A choice's position in its grammar. Used by one thread at a time.

    Where only one text may come next, its tokens are planned as the model's tokenizer splits that
    text; the last token stays open if what follows could merge with it. The plan depends on the
    consumed tokens alone, so a run that resumes inside it continues the same way.
    """

    def __init__(
        self, matcher: llguidance.LLMatcher, only_empty: bool = False, plans: bool = True
    ) -> None:
        self.matcher = matcher
        self._only_empty = only_empty
        self._plans = plans and not only_empty
        self._planned: deque[int] | None = None  # unknown since the last token
        self._is_overruled = False
        self.slow_seconds = 0.0
        self.closing: Closing | None = None

    @property
    def forced(self) -> int | None:
        """The only token that the grammar allows next, or None if there are several."""
        if self._planned is None:
            self._planned = deque(self._plan() if self._plans else ())
        if self._planned and (token_id := self.review(self._planned[0])) != self._planned[0]:
            self._planned = deque((token_id,))
        return self._planned[0] if self._planned else None

    def force(self, token_id: int) -> None:
        """Leave no choice but a token that may come next."""
        self._planned, self._is_overruled = deque((token_id,)), True

    def leaves_only(self, token_id: int) -> bool:
        """Return whether the token is the only one that the grammar allows next, or that the limit
        leaves. A token that took the place of a sampled one before that point is not: a worker that
        resumes the choice cannot know it."""
        if self.closing is not None and self.closing.leaves_only(self.matcher, token_id):
            return True
        return not self._is_overruled and token_id == self.forced

    @property
    def is_closing(self) -> bool:
        """Whether :meth:`review` may replace a token."""
        return self.closing is not None and self.closing.is_near

    def review(self, token_id: int) -> int:
        """Return the token that takes the place of a sampled one, so that the choice can end in
        time."""
        if self.closing is None or not self.closing.is_near:
            return token_id
        return self.closing.review(self.matcher, token_id)

    def _plan(self) -> list[int]:
        began = time.thread_time()
        planned: list[int] = self.matcher.compute_ff_tokens()
        self._spend(time.thread_time() - began)
        return planned

    def copy(self) -> "GrammarMatcher":
        """Return an independent copy of the matcher at the same position."""
        other = GrammarMatcher(self.matcher.deep_copy(), self._only_empty, self._plans)
        other._planned = None if self._planned is None else self._planned.copy()
        other.slow_seconds = self.slow_seconds
        other.closing = None if self.closing is None else self.closing.copy()
        return other

    @property
    def is_slow(self) -> bool:
        """Whether one of its masks was slow, so that needless ones would delay other requests."""
        return self.slow_seconds > 0

    def allows(self, token_id: int) -> bool:
        """Return whether the token may come next."""
        return bool(self.matcher.validate_tokens([token_id]) == 1)

    def fill(self, address: int, num_bytes: int) -> None:
        """Write the mask to the given memory, and record how long it took."""
        began = time.thread_time()
        self.matcher.unsafe_compute_mask_ptr(address, num_bytes)
        self._spend(time.thread_time() - began)

    def _spend(self, seconds: float) -> None:
        if seconds > _SLOW_SECONDS:
            self.slow_seconds += seconds

    @property
    def closes(self) -> bool:
        """Whether the choice ends within its limit, if an end is known."""
        return self.closing is not None

    @property
    def closed_at(self) -> int | None:
        """How many tokens came before the way to the end took all that remained."""
        return self.closing.closed_at if self.closing is not None else None

    @property
    def is_accepting(self) -> bool:
        """Whether the text so far is one of the grammar's."""
        return is_accepting(self.matcher)

    @property
    def is_complete(self) -> bool:
        """Whether nothing more may follow. Raises GrammarError if the matcher failed or gave up,
        since llguidance then reports the same."""
        stopped = self.matcher.is_stopped()
        if stopped or self.slow_seconds or (self.closing is not None and self.closing.plan.is_slow):
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
        self._planned, self._is_overruled = planned or None, False
        if self.closing is not None:
            self.closing.note(self.matcher, token_id)
        self.matcher.consume_token(token_id)
        return self.is_complete

    def check(self) -> None:
        """Raise GrammarError if the matcher is in its error state, which it never leaves, or has
        delayed other requests for too long."""
        if (fault := self.fault()) is not None:
            raise fault

    def fault(self) -> GrammarError | None:
        if self.matcher.is_error():
            return GrammarError(_explain(self.matcher.get_error()))
        closes_slowly = self.closing is not None and self.closing.plan.is_slow
        if self.slow_seconds > _PATIENCE_SECONDS or closes_slowly:
            return GrammarError("The grammar takes too long to follow: it is too ambiguous")
        return None


class _Line(NamedTuple):
    """A row of logits under a grammar, and its row of the mask."""

    row: int
    sequence: Sequence
    matcher: GrammarMatcher
    num_drafted: int


class StructuredOutput:
    """Compiles grammars on threads of its own, and fills masks.

    Slow masks are filled while the model runs. On a CPU, the step's own thread fills quick ones
    before the forward: another thread would take a core from it.

    Matchers of different requests share nothing: llguidance lets copies share a lexer, and a
    lexer that reaches a limit fails for all of them.
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
        self.tokenizer = llguidance_tokenizer.build(
            vocabulary.bytes, vocabulary.token_bytes, sorted(eos_token_ids)
        )
        self._executor = llguidance.LLExecutor(num_threads=num_threads)
        self._words = -(-vocabulary.size // 32)
        self.filler = ThreadPoolExecutor(1, thread_name_prefix="grammar-mask")
        self._times_rows = False
        self._slow_steps = 0
        self._bits: Bits = np.empty((0, self._words), dtype=np.int32)
        self._real = _real_tokens(vocabulary, self._words)
        self.end_tokens = EndTokens(
            self.tokenizer, vocabulary.token_bytes, vocabulary.bytes.special_ids, eos_token_ids
        )
        self.compiler = make_big_stack_threads(_COMPILERS, "grammar-compile")

    def compile(
        self,
        grammar: str,
        count: int,
        done: Callable[[list[GrammarMatcher] | EngineError], None],
        limits: Rows[int] | None = None,
        banned: frozenset[int] = frozenset(),
    ) -> None:
        """Compile on another thread, which calls ``done`` with ``count`` matchers or the error.

        With ``limits``, the choice of each matcher ends within so many tokens, and without the
        ``banned`` ones if it can.
        """
        self.compiler.submit(lambda: done(self.compile_now(grammar, count, limits, banned)))

    def start_mask(
        self, rows: list[Sequence], only_if: Callable[[Sequence], bool] | None = None
    ) -> "Future[GrammarMask] | None":
        """Begin to fill the masks of a step's rows, or of those that ``only_if`` accepts. Return
        None if none of them has a grammar."""
        constrained = [
            _Line(row, seq, matcher, num_drafted)
            for row, (seq, num_drafted, matcher) in enumerate(lay_rows(rows))
            if isinstance(matcher, GrammarMatcher) and (only_if is None or only_if(seq))
        ]
        if not constrained:
            return None
        if self._device.type != "cpu" or self._slow_steps:
            self._slow_steps = max(0, self._slow_steps - 1)
            return self.filler.submit(self._fill, constrained, self._executor)
        filled: Future[GrammarMask] = Future()
        began = time.thread_time()
        filled.set_result(self._fill(constrained))
        if time.thread_time() - began > _QUICK_FILL_SECONDS:
            self._slow_steps = _SLOW_STEPS
        return filled

    def close(self) -> None:
        self.filler.shutdown(wait=False)
        self.compiler.shutdown(wait=False, cancel_futures=True)

    def compile_now(
        self,
        grammar: str,
        count: int,
        limits: Rows[int] | None = None,
        banned: frozenset[int] = frozenset(),
    ) -> list[GrammarMatcher] | EngineError:
        plan = None
        try:
            first = self._make_matcher(grammar)
            if limits is not None:
                shortest = min(limits, default=0)
                plan = ClosingPlan.make(first, self.end_tokens, grammar, shortest, banned)
                first = self._make_matcher(grammar) if plan.gives_up else first
            # The first mask costs most, and shows that a grammar is too complex.
            allowed = np.frombuffer(first.compute_bitmask(), dtype=np.uint8)
            only_empty = first.is_accepting() and self._is_eos_only(allowed)
            matchers = [first, *(first.deep_copy() for _ in range(count - 1))]
            wrapped = [GrammarMatcher(m, only_empty, self._jump_forward) for m in matchers]
            wrapped[0].check()
            for each, limit in zip(wrapped, limits or (), strict=plan is not None):
                each.closing = Closing(plan, limit) if plan is not None else None
        except GrammarError as error:
            return error
        except Exception as error:  # noqa: BLE001 - ends this request, not the engine
            return GrammarError(str(error))
        return wrapped

    def _make_matcher(self, grammar: str) -> llguidance.LLMatcher:
        return llguidance.LLMatcher(self.tokenizer, grammar, log_level=0, limits=ENGINE_LIMITS)

    def _is_eos_only(self, allowed: NDArray[np.uint8]) -> bool:
        if np.bitwise_count(allowed).sum() > len(self._eos_token_ids):
            return False
        ids = np.unpackbits(allowed, bitorder="little").nonzero()[0]
        return self._eos_token_ids.issuperset(ids.tolist())

    def _fill(
        self,
        constrained: list[_Line],
        executor: llguidance.LLExecutor | None = None,
    ) -> GrammarMask:
        bits = self._clear_bits(len(constrained))
        faults = self._compute([line.matcher for line in constrained], bits, executor)
        avoided = []
        for i, line in enumerate(constrained):
            try:
                if (token_id := line.matcher.forced) is not None:
                    allow_only(bits[i], token_id)
                else:
                    checker = line.sequence.choice.stop_checker
                    bad = list_bad_tokens(line.sequence, line.num_drafted)
                    allow_some(bits[i], line.sequence.rules.allowed_bits)
                    avoided.append((i, checker.ids_to_avoid(line.num_drafted) | bad))
            except Exception as error:  # noqa: BLE001 - ends this row's request, not the step
                faults[i] = error
        forbid(bits, avoided)
        rows = [line.row for line in constrained]
        return GrammarMask.on(
            self._device, rows, bits, {rows[i]: error for i, error in faults.items()}
        )

    def _clear_bits(self, num_rows: int) -> Bits:
        """Reused memory: page faults on fresh memory in every step would cost more than the
        masks."""
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
    """Return the bits of ids that are tokens, or None if all ids are: a grammar's wildcard allows
    the model's padding too."""
    real = np.zeros(num_words * 32, dtype=np.uint8)
    real[list(vocabulary.tokenizer.get_vocab(with_added_tokens=True).values())] = 1
    if real[: vocabulary.size].all():
        return None
    return np.packbits(real, bitorder="little").view(np.int32)


def _explain(message: str) -> str:
    """llguidance's message without its advice on limits, which a client cannot raise."""
    if TOO_MANY_ITEMS.search(message) or TOO_MANY_STATES.search(message):
        return "The grammar became too complex on the way: it allows too much at once"
    return message
