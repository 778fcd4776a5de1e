"""Finds earlier occurrences of a text's end, as LZ77 does, and the tokens that followed them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

_LENGTHS = (6, 3, 1)
"""The lengths of the n-grams that are looked up, the longest first."""

_MAX_PLACES = 8
"""How many places of one n-gram are remembered: the last ones."""

LONGEST_MATCH = 12
"""How many tokens before a place are compared: longer matches count as equal."""


class Match(NamedTuple):
    """A place in an index that follows the tokens looked up."""

    position: int
    """The position of the token that followed."""
    length: int
    """The number of matching tokens before it, at most ``LONGEST_MATCH``."""


class NgramIndex:
    """A growing list of tokens, with the last places of each n-gram of a few lengths.

    A token takes constant time and at most 400 bytes.
    """

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        # Most n-grams occur at one place: a list for each would take most of the memory.
        self._ends: tuple[dict[int, int | list[int]], ...] = tuple({} for _ in _LENGTHS)

    def extend(self, token_ids: Iterable[int]) -> None:
        known, tables = self.token_ids, tuple(zip(_LENGTHS, self._ends, strict=True))
        for token_id in token_ids:
            known.append(token_id)
            end = len(known)
            for length, ends in tables:
                key = hash(tuple(known[-length:]))
                before = ends.get(key)
                if before is None:
                    ends[key] = end
                elif isinstance(before, int):
                    ends[key] = [before, end]
                else:
                    before.append(end)
                    if len(before) > _MAX_PLACES:
                        del before[0]

    def find(self, ending: Sequence[int]) -> list[Match]:
        """Return places that follow the end of ``ending``, the last first: the places of its
        longest indexed n-gram, and if these are few, of shorter n-grams too."""
        matches: dict[int, Match] = {}
        for length, ends in zip(_LENGTHS, self._ends, strict=True):
            if len(ending) < length or len(matches) >= _MAX_PLACES:
                continue
            positions = ends.get(hash(tuple(ending[-length:])), ())
            for position in (positions,) if isinstance(positions, int) else reversed(positions):
                if position not in matches:
                    matched = self._common(position, ending)
                    if matched >= length:  # else two n-grams have the same hash
                        matches[position] = Match(position, matched)
        return list(matches.values())

    def _common(self, position: int, ending: Sequence[int]) -> int:
        """Count the tokens before ``position`` that match the end of ``ending``."""
        most = min(position, len(ending), LONGEST_MATCH)
        known = self.token_ids
        for i in range(most):
            if known[position - 1 - i] != ending[-1 - i]:
                return i
        return most
