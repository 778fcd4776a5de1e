"""Ranges and defaults of sampling parameters, shared by the API's fields and the engine."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

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
