"""What a job used, as the engine counts it, events carry it and the ledger records it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a whole job. A newer field has a default: scripts and earlier workers leave
    it out. Readers ignore a field that only later versions know."""

    prompt_tokens: int
    """Each prompt counts once, however many choices it has."""
    completion_tokens: int
    """Over all choices. Includes sampled end or stop tokens and tokens already published."""
    cached_tokens: int = 0
    """Prompt tokens that were in the prefix cache when the prompt first ran."""
    forced_tokens: int = 0
    """Completion tokens that the grammar left no choice about."""
