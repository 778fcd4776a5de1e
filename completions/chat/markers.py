"""Finds markers in text that arrives in pieces, wherever the pieces are cut."""

import re
from collections.abc import Sequence
from functools import lru_cache

_MARKS = re.compile(r"\]<\][a-z]+\[>\[|<[^<>\s]+>|\uff5c[^\uff5c<>\s]+\uff5c|\[/?[A-Z_]+\]")
_NEVER = r"(?!)"


def _find_nothing(text: str) -> None:
    """Search for no marker."""


def find_marks(text: str) -> list[str]:
    """Return the parts of a text that may be special tokens of a model."""
    return _MARKS.findall(text)


def match_mark(text: str) -> str:
    """Return the mark that a text begins with; empty if it begins with none."""
    match = _MARKS.match(text)
    return match[0] if match else ""


class Markers:
    """Markers that are looked for together; there may be hundreds. Where one begins like another,
    the longer one counts."""

    def __init__(self, markers: Sequence[str]) -> None:
        longest_first = map(re.escape, sorted(markers, key=len, reverse=True))
        beginnings = "".join(sorted({re.escape(marker[0]) for marker in markers}))
        self.find_beginning = re.compile(f"[{beginnings}]").search if markers else _find_nothing
        """Finds the first character of any marker."""
        self._pattern = re.compile("|".join(longest_first) or _NEVER)
        self._parts = {marker[:n] for marker in markers for n in range(1, len(marker))}
        self._longest = max(map(len, self._parts), default=0)

    def split(self, text: str) -> tuple[str, str | None, str]:
        """Return the text before the first marker, that marker, and the text after it.

        Without a marker, the third item is the longest suffix of the text that may begin one.
        """
        if (beginning := self.find_beginning(text)) is None:
            return text, None, ""
        match = self._pattern.search(text, beginning.start())
        end = len(text) if match is None else match.start() + 1
        for at in range(max(len(text) - self._longest, beginning.start()), end):
            if text[at:] in self._parts:
                return text[:at], None, text[at:]
        if match is None:
            return text, None, ""
        return text[: match.start()], match[0], text[match.end() :]

    def remove(self, text: str) -> str:
        return self._pattern.sub("", text)


@lru_cache(256)
def compile_markers(*markers: str) -> Markers:
    return Markers(markers)


class MarkerFilter:
    """Remover of markers from a text."""

    def __init__(self, markers: Sequence[str]) -> None:
        self._markers = compile_markers(*markers)
        self._held = ""

    def push(self, text: str) -> str:
        if not (self._held or self._markers.find_beginning(text)):
            return text
        before, marker, self._held = self._markers.split(self._held + text)
        while marker is not None:
            more, marker, self._held = self._markers.split(self._held)
            before += more
        return before

    def finish(self) -> str:
        held, self._held = self._held, ""
        return self._markers.remove(held)
