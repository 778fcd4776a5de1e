"""Why a choice ended."""

from enum import StrEnum
from typing import NamedTuple


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"


class Finish(NamedTuple):
    """Why a choice ended."""

    reason: FinishReason
    matched_stop: int | str | None = None
    """The stop string, pattern or token id; None for a length limit or a complete grammar."""
    matched_text: str | None = None
    """What the pattern matched."""
