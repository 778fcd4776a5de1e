"""Finds markers in text that arrives in pieces, wherever the pieces are cut."""

import re
from collections.abc import Sequence

_MARKS = re.compile(r"<[^<>\s]+>|\uff5c[^\uff5c<>\s]+\uff5c|\[/?[A-Z_]+\]")


def find_marks(text: str) -> list[str]:
    """Return the parts of a text that may be special tokens of a model."""
    return _MARKS.findall(text)


def split_at(text: str, markers: Sequence[str]) -> tuple[str, str | None, str]:
    """Return the text before the first marker, that marker, and the text after it.

    Without a marker, the third item is the longest suffix of the text that may begin a marker.
    """
    first = min(((text.find(marker), marker) for marker in markers if marker in text), default=None)
    if first is not None:
        start, marker = first
        return text[:start], marker, text[start + len(marker) :]
    longest = min(len(text), max(map(len, markers), default=0) - 1)
    ends = (text[-n:] for n in range(longest, 0, -1))
    held = next((end for end in ends if any(marker.startswith(end) for marker in markers)), "")
    return text.removesuffix(held), None, held


class MarkerFilter:
    """Remover of markers from a text. There may be hundreds, so one pattern and one set find
    them."""

    def __init__(self, markers: Sequence[str]) -> None:
        self._pattern = re.compile("|".join(map(re.escape, markers))) if markers else None
        self._beginnings = {marker[:n] for marker in markers for n in range(1, len(marker))}
        self._longest = max(map(len, self._beginnings), default=0)
        self._held = ""

    def push(self, text: str) -> str:
        if self._pattern is None:
            return text
        text = self._held + text
        pieces, end = [], 0
        for match in self._pattern.finditer(text):
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
        return held
