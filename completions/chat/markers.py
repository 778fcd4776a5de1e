"""Finds markers in text that arrives in pieces, wherever the pieces are cut."""

import re
from collections.abc import Sequence
from functools import lru_cache

_MARKS = re.compile(r"\]<\][a-z]+\[>\[|<[^<>\s]+>|\uff5c[^\uff5c<>\s]+\uff5c|\[/?[A-Z_]+\]")


def find_marks(text: str) -> list[str]:
    """Return the parts of a text that may be special tokens of a model."""
    return _MARKS.findall(text)


def match_mark(text: str) -> str:
    """Return the mark that a text begins with; empty if it begins with none."""
    match = _MARKS.match(text)
    return match[0] if match else ""


def split_at(text: str, markers: Sequence[str]) -> tuple[str, str | None, str]:
    """Return the text before the first marker, that marker, and the text after it.

    Without a marker, the third item is the longest suffix of the text that may begin a marker.
    """
    if _list_beginnings(tuple(markers)).isdisjoint(text):
        return text, None, ""
    found, place = None, len(text)
    for marker in markers:
        if 0 <= (at := text.find(marker)) < place:
            found, place = marker, at
    if found is not None:
        return text[:place], found, text[place + len(found) :]
    for marker in markers:
        if marker[0] in text:
            place = min(place, _find_begun(text, marker))
    return text[:place], None, text[place:]


@lru_cache
def _list_beginnings(markers: tuple[str, ...]) -> frozenset[str]:
    return frozenset(marker[0] for marker in markers)


def _find_begun(text: str, marker: str) -> int:
    """Return where the longest suffix of a text that may begin a marker starts."""
    first, end = marker[0], len(text)
    at = text.find(first, max(end - len(marker) + 1, 0))
    while at >= 0 and not marker.startswith(text[at:]):
        at = text.find(first, at + 1)
    return end if at < 0 else at


class MarkerFilter:
    """Remover of markers from a text. There may be hundreds, so one pattern and one set find
    them."""

    def __init__(self, markers: Sequence[str]) -> None:
        longest_first = map(re.escape, sorted(markers, key=len, reverse=True))
        self._pattern = re.compile("|".join(longest_first)) if markers else None
        self._beginnings = {marker[:n] for marker in markers for n in range(1, len(marker))}
        self._longest = max(map(len, self._beginnings), default=0)
        self._held = ""

    def push(self, text: str) -> str:
        if self._pattern is None:
            return text
        text = self._held + text
        pieces, end = [], 0
        for match in self._pattern.finditer(text):
            if match.end() == len(text) and match[0] in self._beginnings:
                break  # it may become a longer one
            pieces.append(text[end : match.start()])
            end = match.end()
        rest = text[end:]
        lengths = range(min(len(rest), self._longest), 0, -1)
        held = next((n for n in lengths if rest[-n:] in self._beginnings), 0)
        cut = len(rest) - held
        self._held = rest[cut:]
        return "".join([*pieces, rest[:cut]])

    def finish(self) -> str:
        held, self._held = self._held, ""
        return self._pattern.sub("", held) if self._pattern else held
