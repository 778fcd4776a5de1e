"""Grammars to token masks, through llguidance: compile, mask, advance, and tell errors apart."""

import json
import os
import re
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
from tokenizers import Tokenizer

from workers.engine.exceptions import EngineError, GrammarError
from workers.engine.grammar.mask import Bits, GrammarMask, allow_only, forbid
from workers.engine.sequence import Sequence
from workers.engine.text.detokenizer import Vocabulary

_COMPILE_STACK_BYTES = 256 * 2**20
"""llguidance compiles recursively; a long chain of references overflows an ordinary stack."""

_LIMITS = llguidance.LLParserLimits(
    max_lexer_states=50_000, step_lexer_fuel=50_000, step_max_items=10_000, verbose_errors=False
)
"""At 1-2 kB a lexer state and some 5 ms for a step; ordinary grammars need a tenth of either.
Terse errors, since verbose ones quote the grammar and the output."""

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

_TOO_COMPLEX = re.compile(
    r"too many (items|states|expressions constructed)|current row has", re.IGNORECASE
)


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
        self._tokenizer = _build_tokenizer(vocabulary, sorted(eos_token_ids))
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
            first = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS)
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
    if _TOO_COMPLEX.search(message):
        return "The grammar became too complex on the way: it allows too much at once"
    return message


def _build_tokenizer(vocabulary: Vocabulary, eos_token_ids: list[int]) -> llguidance.LLTokenizer:
    """llguidance's view of the vocabulary, with every end-of-sequence id the model has.

    Text that spells a special token must be encoded as plain text: given the tokenizer's own
    file, llguidance forces the special token there, and then fails on it.
    """
    plain = _PlainTextTokenizer(vocabulary, eos_token_ids[0])
    return llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(plain), n_vocab=vocabulary.size, eos_token=eos_token_ids
    )


class _PlainTextTokenizer:
    """The attributes that llguidance reads from a wrapped tokenizer."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, eos_token_id: int) -> None:
        # A token for every row of the output layer: llguidance sizes its masks by these, and
        # many models have more rows than their tokenizer has tokens.
        self.tokens = vocabulary.token_bytes or _decoded_tokens(vocabulary)
        self.special_token_ids = sorted(vocabulary.special_ids)
        self.eos_token_id = eos_token_id
        self._tokenizer = _without_prefix(vocabulary.tokenizer)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _decoded_tokens(vocabulary: Vocabulary) -> list[bytes]:
    """What each token contributes to a text, as llguidance reads a vocabulary whose words begin
    with a mark (SentencePiece, as of Llama 2)."""
    tokenizer = vocabulary.tokenizer
    reader = llguidance.LLTokenizer(tokenizer.to_str(), n_vocab=vocabulary.size)
    table = [b""] * vocabulary.size
    for token_id in tokenizer.get_vocab(with_added_tokens=True).values():
        table[token_id] = reader.decode_bytes([token_id])
    for token_id, token in tokenizer.get_added_tokens_decoder().items():
        table[token_id] = token.content.encode()
    return table


def _without_prefix(tokenizer: Tokenizer) -> Tokenizer:
    """A copy that puts no space in front of a text: what a grammar forces stands behind another."""
    state = json.loads(tokenizer.to_str())
    normalizer = state["normalizer"] or {"type": "Sequence", "normalizers": []}
    steps = [s for s in normalizer.get("normalizers", [normalizer]) if s["type"] != "Prepend"]
    state["normalizer"] = {"type": "Sequence", "normalizers": steps}
    splitter = state["pre_tokenizer"] or {}
    for step in splitter.get("pretokenizers", [splitter]):
        if step.get("type") == "Metaspace":
            step["prepend_scheme"] = "never"
    return Tokenizer.from_str(json.dumps(state))
