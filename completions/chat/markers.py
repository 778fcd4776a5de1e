"""Finding marks in text that arrives in pieces, however it is cut."""

import re
from collections.abc import Sequence


def split_at(text: str, marks: Sequence[str]) -> tuple[str, str | None, str]:
    """What stands before the first mark, that mark, and what follows.

    Without one the rest is the longest end of the text that may still become a mark.
    """
    found = min(((text.find(mark), mark) for mark in marks if mark in text), default=None)
    if found is not None:
        start, mark = found
        return text[:start], mark, text[start + len(mark) :]
    held = max((_overlap(text, mark) for mark in marks), default=0)
    cut = len(text) - held
    return text[:cut], None, text[cut:]


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of the text that a mark begins with."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)


class MarkFilter:
    """Takes marks out of a text, such as special tokens that were only shown to find others.

    There may be hundreds of them, so a pattern and a set stand for all.
    """

    def __init__(self, marks: Sequence[str]) -> None:
        self._pattern = re.compile("|".join(map(re.escape, marks))) if marks else None
        self._beginnings = {mark[:n] for mark in marks for n in range(1, len(mark))}
        self._longest = max(map(len, self._beginnings), default=0)
        self._held = ""

    def push(self, text: str) -> str:
        if self._pattern is None:
            return text
        text = self._held + text
        shown, end = [], 0
        for found in self._pattern.finditer(text):
            shown.append(text[end : found.start()])
            end = found.end()
        rest = text[end:]
        lengths = range(min(len(rest), self._longest), 0, -1)
        held = next((n for n in lengths if rest[-n:] in self._beginnings), 0)
        cut = len(rest) - held
        self._held = rest[cut:]
        return "".join([*shown, rest[:cut]])

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held
