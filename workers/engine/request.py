"""What goes into the engine and what comes out: the only types its callers see. No torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from completions.contract.stop_regex.automaton import MAX_PATTERN_BYTES, MAX_PATTERNS
from workers.engine.exceptions import EngineError

GREEDY_TEMPERATURE = 1e-5
"""Below this temperature the most likely token is taken; dividing by less would overflow."""

MAX_TOP_LOGPROBS = 20
_LARGEST = float(np.finfo(np.float32).max)
MAX_LOGPROB_TOKEN_IDS = 128


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen, when a choice ends, and what is told about it.

    Penalties count output tokens only, DRY the prompt's too. ``top_k <= 0``, ``min_p == 0`` and
    ``dry_multiplier == 0`` are off. ``custom_logit_processor`` is one of the names that the engine
    has registered, and reads ``custom_params``.

    With ``best_of`` above ``n`` that many candidates run for each prompt, and the ``n`` with the
    highest mean log probability per token are its choices.

    ``ignore_eos`` ignores the model's own end-of-sequence ids, never ``stop_token_ids``; under a
    grammar, where they can only end the text, they are not sampled while anything else may follow.
    ``min_tokens`` defers every stop condition except a complete grammar. ``max_tokens`` 0 computes
    only what is told of the prompt. With ``no_stop_trim`` the text includes the stop that ended it.
    ``spaces_between_special_tokens`` False drops the space that some decoders put between special
    tokens. ``seed`` counts modulo 2**64.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    custom_logit_processor: str | None = None
    custom_params: Mapping[str, Any] = field(default_factory=dict)
    n: int = 1
    best_of: int | None = None
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True

    def __post_init__(self) -> None:
        for name, valid in {**self._valid_choice(), **self._valid_end()}.items():
            if not valid:
                raise ValueError(f"{name} is out of range: {getattr(self, name)!r}")

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def filters(self) -> bool:
        """Whether some of the tokens are left out before one is drawn."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def penalizes(self) -> bool:
        """Whether tokens that occurred become less likely, repetitions of several not counted."""
        penalties = (self.frequency_penalty, self.presence_penalty, self.repetition_penalty)
        return penalties != (0.0, 0.0, 1.0)

    @property
    def num_candidates(self) -> int:
        """How many sequences run for each prompt."""
        return self.best_of or self.n

    def _valid_choice(self) -> dict[str, bool]:
        def finite(value: float) -> bool:  # as a float32, which the logits are
            return abs(value) <= _LARGEST

        return {
            "temperature": finite(self.temperature) and self.temperature >= 0,
            "top_p": 0 < self.top_p <= 1,
            "min_p": 0 <= self.min_p <= 1,
            "presence_penalty": finite(self.presence_penalty),
            "frequency_penalty": finite(self.frequency_penalty),
            "repetition_penalty": finite(self.repetition_penalty) and self.repetition_penalty > 0,
            "logit_bias": all(map(finite, self.logit_bias.values())),
            "dry_multiplier": math.isfinite(self.dry_multiplier) and self.dry_multiplier >= 0,
            "dry_base": math.isfinite(self.dry_base) and self.dry_base > 0,
            "dry_allowed_length": 0 <= self.dry_allowed_length < 2**31,
            "dry_sequence_breakers": all(self.dry_sequence_breakers),
            "n": self.n >= 1,
            "best_of": self.best_of is None or self.best_of >= self.n,
        }

    def _valid_end(self) -> dict[str, bool]:
        pattern_bytes = [len(pattern.encode()) for pattern in self.stop_regex]
        return {
            "max_tokens": self.max_tokens >= 0,
            "min_tokens": 0 <= self.min_tokens <= self.max_tokens,
            "stop": all(self.stop),
            "stop_regex": len(pattern_bytes) <= MAX_PATTERNS
            and all(0 < size <= MAX_PATTERN_BYTES for size in pattern_bytes),
        }


@dataclass(frozen=True, slots=True)
class LogprobParams:
    """What is told about the probabilities of one prompt's tokens, and of its choices'.

    Of each output token the log probability; with it the ``top_logprobs_num`` likeliest in its
    place, and those of ``token_ids_logprob``. A ``logprob_start_len`` that is not negative asks
    the same of the prompt's tokens from that position on. The names are those of SGLang's API.
    """

    top_logprobs_num: int = 0
    logprob_start_len: int = -1
    token_ids_logprob: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.top_logprobs_num <= MAX_TOP_LOGPROBS:
            raise ValueError(f"top_logprobs_num is out of range: {self.top_logprobs_num}")
        if len(self.token_ids_logprob) > MAX_LOGPROB_TOKEN_IDS:
            raise ValueError(f"token_ids_logprob has more than {MAX_LOGPROB_TOKEN_IDS} ids")


@dataclass(frozen=True, slots=True)
class Request:
    """One call: one or more prompts, each completed ``sampling.n`` times.

    Choice ``i * n + j`` is the ``j``-th choice of prompt ``i``. ``deadline`` is on the clock of
    ``time.monotonic()``. ``published`` maps a choice to the output tokens that an earlier run of
    the same request already delivered: they are replayed, not generated, and never emitted again.
    Of the choices in ``published_ends`` their end was delivered, too: nothing is told of them.
    ``adapters`` names a LoRA adapter of the engine, or None, for every prompt; empty: none at all.

    A larger ``priority`` goes sooner. Inside a priority the engine serves ``organization``s, of
    which "" is nobody's, equal numbers of tokens. Cached prefixes are shared among requests with
    the same ``organization``, ``cache_salt`` and adapter.

    ``return_hidden_states`` asks for each choice's last hidden state, ``return_routed_experts``
    for the experts of its tokens from ``routed_experts_start_len`` on (see :class:`ChoiceDelta`).
    ``logprobs`` is empty, or says for each prompt what is told of probabilities, if anything is.
    Any of these makes a step of every token that a grammar forces.
    """

    request_id: str
    prompts: tuple[tuple[int, ...], ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    grammar: str | None = None
    priority: int = 0
    organization: str = ""
    cache_salt: str = ""
    deadline: float | None = None
    published: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    published_ends: frozenset[int] = frozenset()
    adapters: tuple[str | None, ...] = ()
    return_hidden_states: bool = False
    return_routed_experts: bool = False
    routed_experts_start_len: int = 0
    logprobs: tuple[LogprobParams | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request: a prompt counts once, completions over all choices.

    ``cached_tokens`` are those of the prompts that were in the prefix cache when they first ran.
    ``completion_tokens`` includes a sampled end or stop token and what was already published;
    ``forced_tokens`` are those among them that the grammar left no choice about.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    forced_tokens: int = 0


@dataclass(slots=True, eq=False)
class TokenLogprobs:
    """Natural logarithms of the probabilities of consecutive tokens, a row each.

    They are taken from the model's raw logits, before penalties, masks and temperature, so they
    compare between requests; none is below -9999.

    ``chosen`` [n] are those of the tokens themselves; ``top`` [n, k] those of the likeliest
    tokens ``top_ids`` [n, k] in their place, in descending order, the lower id first among equals;
    ``named`` [n, m] those of the ids that were named. ``offsets`` say how many characters of the
    choice's text stand before each token, none for a prompt. The first row of a prompt has no
    probabilities: it is NaN, and its ``top_ids`` are -1.
    """

    chosen: NDArray[np.float32]
    top_ids: NDArray[np.int64]
    top: NDArray[np.float32]
    named: NDArray[np.float32]
    offsets: list[int] = field(default_factory=list)

    @classmethod
    def unknown(cls, num_rows: int, params: LogprobParams) -> Self:
        """Rows that are to be filled in."""
        top, named = params.top_logprobs_num, len(params.token_ids_logprob)
        return cls(
            np.full(num_rows, np.nan, np.float32),
            np.full((num_rows, top), -1, np.int64),
            np.full((num_rows, top), np.nan, np.float32),
            np.full((num_rows, named), np.nan, np.float32),
        )

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """All rows of ``parts``, of which there must be one at least."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.chosen for part in parts]),
            np.concatenate([part.top_ids for part in parts]),
            np.concatenate([part.top for part in parts]),
            np.concatenate([part.named for part in parts]),
            [offset for part in parts for offset in part.offsets],
        )

    def rows(self, start: int, stop: int) -> Self:
        """A view of some rows, without offsets."""
        rows = slice(start, stop)
        return type(self)(self.chosen[rows], self.top_ids[rows], self.top[rows], self.named[rows])


@dataclass(slots=True)
class ChoiceDelta:
    """What one choice gained in one step. ``token_ids`` include a sampled end or stop token,
    ``text`` does not.

    ``matched_stop_text`` is what a stop regex matched.

    ``logprobs`` are those of ``token_ids``, if they were asked for. ``prompt_logprobs``, of the
    prompt's tokens from ``logprob_start_len`` on, come with the first delta of the first choice
    of a prompt, before anything of its other choices.

    The first delta says how much of the prompt was in the prefix cache.

    With the finish come, if they were asked for: ``hidden_states`` [hidden], the output of the
    model's last layer and final norm from which the last token was chosen (None for a choice
    without tokens), and ``routed_experts`` [positions, layers, top_k] of prompt and output but
    for the last token, which was never computed; layers without experts are left out.
    """

    index: int
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    matched_stop: int | str | None = None
    matched_stop_text: str | None = None
    hidden_states: list[float] | None = None
    routed_experts: NDArray[np.int32] | None = field(default=None, compare=False)
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: TokenLogprobs | None = None
    cached_tokens: int = field(default=0, compare=False)

    def add(self, later: Self) -> None:
        """Append what the choice gained next."""
        self.token_ids += later.token_ids
        self.text += later.text
        self.hidden_states, self.routed_experts = later.hidden_states, later.routed_experts
        self.finish_reason, self.matched_stop = later.finish_reason, later.matched_stop
        self.matched_stop_text = later.matched_stop_text
        parts = [part for part in (self.logprobs, later.logprobs) if part is not None]
        self.logprobs = TokenLogprobs.joined(parts) if parts else None
        self.prompt_logprobs = self.prompt_logprobs or later.prompt_logprobs
        self.cached_tokens += later.cached_tokens


@dataclass(slots=True)
class RequestOutput:
    """What one request gained in one step; the last one has ``finished`` and ``usage``.

    With ``error`` the whole request failed and ``deltas`` hold what came before.
    """

    request_id: str
    deltas: list[ChoiceDelta]
    finished: bool = False
    error: EngineError | None = None
    usage: Usage | None = None


@dataclass(slots=True)
class Completion:
    """A whole request as ``Engine.generate`` returns it: each choice is one accumulated delta."""

    request_id: str
    choices: list[ChoiceDelta]
    error: EngineError | None = None
    usage: Usage | None = None

    @classmethod
    def begin(cls, request: Request) -> Self:
        """Of a request that has no output yet."""
        num_choices = len(request.prompts) * request.sampling.n
        return cls(request.request_id, [ChoiceDelta(i) for i in range(num_choices)])

    def add(self, output: RequestOutput) -> None:
        for delta in output.deltas:
            self.choices[delta.index].add(delta)
        self.error, self.usage = output.error, output.usage
