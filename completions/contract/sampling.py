"""Sampling parameters: their ranges and defaults, which the API's fields share, and the record of
them that a job holds and the engine takes. No torch."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from msgspec import Struct, field

from completions.contract.stop_regex.automaton import MAX_PATTERN_BYTES, MAX_PATTERNS
from completions.contract.stop_spans import StopSpan

_N = TypeVar("_N", int, float)


@dataclass(frozen=True, slots=True)
class Range(Generic[_N]):
    """The finite numbers that a parameter may take. Bounds are inclusive; None means no bound."""

    default: _N
    low: _N | None = None
    high: _N | None = None
    excludes_low: bool = False

    def __contains__(self, value: float) -> bool:
        if not abs(value) <= sys.float_info.max:  # NaN compares false, and integers do not overflow
            return False
        if self.high is not None and value > self.high:
            return False
        return self.low is None or value > self.low or (value == self.low and not self.excludes_low)


INTEGERS: Final[Mapping[str, Range[int]]] = {
    "max_tokens": Range(16, low=0),
    "min_tokens": Range(0, low=0),
    "top_k": Range(-1, low=-1),
    "n": Range(1, low=1, high=128),
    "dry_allowed_length": Range(2, low=0, high=2**31 - 1),
}
FLOATS: Final[Mapping[str, Range[float]]] = {
    "temperature": Range(1.0, low=0.0, high=2.0),
    "top_p": Range(1.0, low=0.0, high=1.0, excludes_low=True),
    "min_p": Range(0.0, low=0.0, high=1.0),
    "presence_penalty": Range(0.0, low=-2.0, high=2.0),
    "frequency_penalty": Range(0.0, low=-2.0, high=2.0),
    "repetition_penalty": Range(1.0, low=0.0, high=2.0, excludes_low=True),
    "dry_multiplier": Range(0.0, low=0.0),
    "dry_base": Range(1.75, low=0.0, excludes_low=True),
}
LOGIT_BIAS: Final = Range(0.0, low=-100.0, high=100.0)
DRY_SEQUENCE_BREAKERS: Final = ("\n", ":", '"', "*")
MAX_TOP_LOGPROBS: Final = 20
MAX_LOGPROB_TOKEN_IDS: Final = 128
MAX_SUPPORT_IDS: Final = 1024
GREEDY_TEMPERATURE = 1e-5
"""Below this temperature the engine takes the likeliest token: division would overflow."""

_RANGES: Mapping[str, Range[int] | Range[float]] = {**INTEGERS, **FLOATS}


class SamplingParams(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """How tokens are chosen and when a choice ends. Raises ValueError for a value out of range.

    The web tier makes it from a request's fields, the job holds it as JSON, and the engine takes it
    as it is. The JSON leaves out defaults: a worker of an earlier version accepts every job that
    does not use a newer field, and a default never changes.
    """

    # Length
    max_tokens: int = INTEGERS["max_tokens"].default
    """0 computes only the results that the request wants for its prompt."""
    min_tokens: int = INTEGERS["min_tokens"].default
    """Defers every stop condition except a complete grammar and the length limit."""

    # Which token
    temperature: float = FLOATS["temperature"].default
    top_p: float = FLOATS["top_p"].default
    top_k: int = INTEGERS["top_k"].default
    """Zero or less switches it off."""
    min_p: float = FLOATS["min_p"].default
    presence_penalty: float = FLOATS["presence_penalty"].default
    """This and the next two penalties count output tokens only."""
    frequency_penalty: float = FLOATS["frequency_penalty"].default
    repetition_penalty: float = FLOATS["repetition_penalty"].default
    logit_bias: dict[int, float] = field(default_factory=dict)
    dry_multiplier: float = FLOATS["dry_multiplier"].default
    """Zero switches DRY off. DRY counts the prompt's tokens too."""
    dry_base: float = FLOATS["dry_base"].default
    dry_allowed_length: int = INTEGERS["dry_allowed_length"].default
    dry_sequence_breakers: tuple[str, ...] = DRY_SEQUENCE_BREAKERS
    custom_logit_processor: str | None = None
    """A name registered in the engine's configuration."""
    custom_params: dict[str, object] = field(default_factory=dict)
    """The parameters of the custom logit processor."""
    seed: int = 0
    """Counts modulo 2**64."""

    # Which tokens never
    bad_words: tuple[tuple[int, ...], ...] = ()
    """The last token of each is not sampled where the others end the output. Under a grammar, this
    and the next field leave what the grammar requires."""
    allowed_token_ids: tuple[int, ...] = ()
    """If any, no other token is sampled."""

    # How many
    n: int = INTEGERS["n"].default
    best_of: int | None = None
    """Above ``n``, this many candidates run for each prompt, and the ``n`` with the highest mean
    log probability per token become its choices."""

    # When it ends
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_spans: tuple[StopSpan, ...] = ()
    """Parts of the text in which ``stop`` and ``stop_regex`` do not count."""
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
        """Violations of rules beyond the ranges of single numbers, by the offending field."""
        pattern_bytes = [len(pattern.encode()) for pattern in self.stop_regex]
        return {
            "logit_bias": all(bias in LOGIT_BIAS for bias in self.logit_bias.values()),
            "dry_sequence_breakers": all(self.dry_sequence_breakers),
            "bad_words": all(self.bad_words),
            "best_of": self.best_of is None or self.best_of >= self.n,
            "min_tokens": self.min_tokens <= self.max_tokens,
            "stop": all(self.stop),
            "stop_spans": all(span.closing for span in self.stop_spans),
            "stop_regex": len(pattern_bytes) <= MAX_PATTERNS
            and all(0 < size <= MAX_PATTERN_BYTES for size in pattern_bytes),
        }
