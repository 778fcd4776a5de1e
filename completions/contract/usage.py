"""What a job used, as the engine counts it, events carry it and the ledger records it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a whole job. A newer field has a default: scripts and earlier workers leave
    it out."""

    prompt_tokens: int
    """Each prompt counts once, however many choices it has."""
    completion_tokens: int
    """Over all choices. Includes sampled end or stop tokens and tokens already published."""
    cached_tokens: int = 0
    """Prompt tokens that were in the prefix cache when the prompt first ran."""
    forced_tokens: int = 0
    """Completion tokens that the grammar left no choice about."""

    @classmethod
    def read(cls, counts: Mapping[str, int]) -> Self:
        """Read the counts of an event or a record, without those that only later versions know."""
        return cls(**{name: counts[name] for name in _NAMES if name in counts})


_NAMES = tuple(field.name for field in fields(Usage))
