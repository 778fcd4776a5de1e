"""Where the tokens of an answer come from: the values of `token_mask`."""

from collections.abc import Iterable
from enum import IntEnum


class TokenOrigin(IntEnum):
    """Why a token stands where it does."""

    GIVEN = 0
    """The client gave it: a token of the prompt, or of a continuation that is scored."""
    SAMPLED = 1
    """It was drawn among several tokens. A drafted token is too: sampling decides whether it
    stays, so no draft forces a token."""
    GRAMMAR = 2
    """The grammar, or what closes it in time, left no choice."""


def make_mask(num_tokens: int, forced: Iterable[int]) -> list[int]:
    """Return the origin of each generated token. ``forced`` are the places of those about which the
    grammar left no choice."""
    mask = [int(TokenOrigin.SAMPLED)] * num_tokens
    for place in forced:
        mask[place] = int(TokenOrigin.GRAMMAR)
    return mask
