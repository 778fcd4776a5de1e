"""What goes into the engine and what comes out: the only types its callers see. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from completions.contract.sampling import (
    DRY_SEQUENCE_BREAKERS,
    FLOATS,
    INTEGERS,
    LOGIT_BIAS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_TOP_LOGPROBS,
    Range,
)
from completions.contract.stop_regex.automaton import MAX_PATTERN_BYTES, MAX_PATTERNS
from workers.engine.exceptions import EngineError

GREEDY_TEMPERATURE = 1e-5
"""Below this temperature the engine takes the likeliest token: division would overflow."""

_RANGES: Mapping[str, Range[int] | Range[float]] = {**INTEGERS, **FLOATS}


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when a choice ends. Raises ValueError for a value out of range."""

    # Length
    max_tokens: int = INTEGERS["max_tokens"].default
    """0 computes only what the request asks about its prompt."""
    min_tokens: int = INTEGERS["min_tokens"].default
    """Defers every stop condition except a complete grammar."""

    # Which token
    temperature: float = FLOATS["temperature"].default
    top_p: float = FLOATS["top_p"].default
    top_k: int = INTEGERS["top_k"].default
    """Zero or less is off."""
    min_p: float = FLOATS["min_p"].default
    presence_penalty: float = FLOATS["presence_penalty"].default
    """This and the next two penalties count output tokens only."""
    frequency_penalty: float = FLOATS["frequency_penalty"].default
    repetition_penalty: float = FLOATS["repetition_penalty"].default
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    dry_multiplier: float = FLOATS["dry_multiplier"].default
    """Zero switches DRY off. DRY counts the prompt's tokens too."""
    dry_base: float = FLOATS["dry_base"].default
    dry_allowed_length: int = INTEGERS["dry_allowed_length"].default
    dry_sequence_breakers: tuple[str, ...] = DRY_SEQUENCE_BREAKERS
    custom_logit_processor: str | None = None
    """A name that the engine's configuration registers."""
    custom_params: Mapping[str, Any] = field(default_factory=dict)
    """What the custom logit processor reads."""
    seed: int = 0
    """Counts modulo 2**64."""

    # How many
    n: int = INTEGERS["n"].default
    best_of: int | None = None
    """Above ``n``, this many candidates run for each prompt, and the ``n`` with the highest mean
    log probability per token become its choices."""

    # When it ends
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    """Ignores the model's own end-of-sequence ids, never ``stop_token_ids``. Under a grammar,
    where these ids can only end the text, they are not sampled while anything else may follow."""

    # What the text shows
    no_stop_trim: bool = False
    """The text includes the stop that ended it."""
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    """False drops the space that some decoders put between special tokens."""

    def __post_init__(self) -> None:
        in_range = {name: getattr(self, name) in range for name, range in _RANGES.items()}
        for name, valid in (*in_range.items(), *self._rules().items()):
            if not valid:
                raise ValueError(f"{name} is out of range: {getattr(self, name)!r}")

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def filters(self) -> bool:
        """Whether a filter removes tokens before the draw."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def penalizes(self) -> bool:
        """Whether a penalty other than DRY applies to tokens that have occurred."""
        penalties = (self.frequency_penalty, self.presence_penalty, self.repetition_penalty)
        return penalties != (0.0, 0.0, 1.0)

    @property
    def num_candidates(self) -> int:
        """How many sequences run for each prompt."""
        return self.best_of or self.n

    def _rules(self) -> dict[str, bool]:
        """The rules beyond the ranges of single numbers, by the field that breaks them."""
        pattern_bytes = [len(pattern.encode()) for pattern in self.stop_regex]
        return {
            "logit_bias": all(bias in LOGIT_BIAS for bias in self.logit_bias.values()),
            "dry_sequence_breakers": all(self.dry_sequence_breakers),
            "best_of": self.best_of is None or self.best_of >= self.n,
            "min_tokens": self.min_tokens <= self.max_tokens,
            "stop": all(self.stop),
            "stop_regex": len(pattern_bytes) <= MAX_PATTERNS
            and all(0 < size <= MAX_PATTERN_BYTES for size in pattern_bytes),
        }


@dataclass(frozen=True, slots=True)
class LogprobParams:
    """Which log probabilities a request wants for one prompt and its choices.

    Each output token comes with its own log probability. The names are those of SGLang's API.
    """

    top_logprobs_num: int = 0
    """How many of the likeliest tokens at each position come with it."""
    logprob_start_len: int = -1
    """The position from which the prompt's tokens are scored too; negative: none of them."""
    token_ids_logprob: tuple[int, ...] = ()
    """Token ids whose log probabilities come with every position."""

    def __post_init__(self) -> None:
        if not 0 <= self.top_logprobs_num <= MAX_TOP_LOGPROBS:
            raise ValueError(f"top_logprobs_num is out of range: {self.top_logprobs_num}")
        if len(self.token_ids_logprob) > MAX_LOGPROB_TOKEN_IDS:
            raise ValueError(f"token_ids_logprob has more than {MAX_LOGPROB_TOKEN_IDS} ids")


@dataclass(frozen=True, slots=True)
class Request:
    """One call: one or more prompts, each completed ``sampling.n`` times.

    Choice ``i * n + j`` is the ``j``-th choice of prompt ``i``. Hidden states, routed experts and
    log probabilities need logits for every token, so a grammar's forced tokens then take a step
    each.
    """

    request_id: str
    prompts: tuple[tuple[int, ...], ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    grammar: str | None = None
    """In llguidance's own text format."""
    priority: int = 0
    """A larger one runs sooner."""
    organization: str = ""
    """Within a priority, organizations get equal numbers of tokens."""
    cache_salt: str = ""
    """Requests share cached prefixes if organization, salt and adapter are equal."""
    deadline: float | None = None
    """On the clock of ``time.monotonic()``."""
    published: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Output tokens by choice that an earlier run of this request delivered. The engine replays
    them and never emits them again."""
    published_ends: frozenset[int] = frozenset()
    """Choices whose end was delivered too. The engine emits nothing for them."""
    adapters: tuple[str | None, ...] = ()
    """A LoRA adapter of the engine, or None, for every prompt; empty: none at all."""
    return_hidden_states: bool = False
    """Asks for each choice's last hidden state (see :class:`ChoiceDelta`)."""
    return_routed_experts: bool = False
    routed_experts_start_len: int = 0
    """The position from which experts are returned."""
    logprobs: tuple[LogprobParams | None, ...] = ()
    """One entry for every prompt, or empty."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request."""

    prompt_tokens: int
    """Each prompt counts once, however many choices it has."""
    cached_tokens: int
    """Prompt tokens that were in the prefix cache when the prompt first ran."""
    completion_tokens: int
    """Over all choices, with a sampled end or stop token and with what was already published."""
    forced_tokens: int = 0
    """Completion tokens that the grammar left no choice about."""


@dataclass(slots=True, eq=False)
class TokenLogprobs:
    """Natural logarithms of the probabilities of n consecutive tokens, one row for each.

    They come from the model's raw logits, before penalties, masks and temperature, so they are
    comparable between requests. None is below -9999. The first row of a prompt has no
    probabilities: its values are NaN and its ``top_ids`` -1.
    """

    chosen: NDArray[np.float32]
    """[n], of the tokens themselves."""
    top_ids: NDArray[np.int64]
    """[n, k], the likeliest tokens in descending order, the lower id first among equals."""
    top: NDArray[np.float32]
    """[n, k], of ``top_ids``."""
    named: NDArray[np.float32]
    """[n, m], of the ids that the request names."""
    offsets: list[int] = field(default_factory=list)
    """Characters of the choice's text before each token; empty for a prompt."""

    @classmethod
    def unknown(cls, num_rows: int, params: LogprobParams) -> Self:
        """Rows for the caller to fill in."""
        top, named = params.top_logprobs_num, len(params.token_ids_logprob)
        return cls(
            np.full(num_rows, np.nan, np.float32),
            np.full((num_rows, top), -1, np.int64),
            np.full((num_rows, top), np.nan, np.float32),
            np.full((num_rows, named), np.nan, np.float32),
        )

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """All rows of ``parts``, which must not be empty."""
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
    """What one choice gained in one step."""

    index: int
    token_ids: list[int] = field(default_factory=list)
    """Includes a sampled end or stop token."""
    text: str = ""
    """Excludes the text of a sampled end or stop token."""
    finish_reason: FinishReason | None = None
    matched_stop: int | str | None = None
    matched_stop_text: str | None = None
    """What a stop regex matched."""
    hidden_states: list[float] | None = None
    """[hidden], with the finish: the output of the last layer and final norm from which the last
    token was chosen. None for a choice without tokens."""
    routed_experts: NDArray[np.int32] | None = field(default=None, compare=False)
    """[positions, layers with experts, top_k], with the finish: of prompt and output, except for
    the last token, which is never computed."""
    logprobs: TokenLogprobs | None = None
    """Of ``token_ids``."""
    prompt_logprobs: TokenLogprobs | None = None
    """Of the prompt from ``logprob_start_len`` on, with the first delta of a prompt's first choice
    and before any delta of its other choices."""
    cached_tokens: int = field(default=0, compare=False)
    """Prompt tokens that were in the prefix cache; only in the first delta."""

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
    """What one request gained in one step.

    The last output has ``finished`` and ``usage``. With ``error``, the whole request failed and
    ``deltas`` hold what came before the failure.
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
        """The completion of a request without output so far."""
        num_choices = len(request.prompts) * request.sampling.n
        return cls(request.request_id, [ChoiceDelta(i) for i in range(num_choices)])

    def add(self, output: RequestOutput) -> None:
        for delta in output.deltas:
            self.choices[delta.index].add(delta)
        self.error, self.usage = output.error, output.usage
