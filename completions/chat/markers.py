"""Finds marks in text that arrives in pieces, wherever the pieces are cut."""

import re
from collections.abc import Sequence


def split_at(text: str, marks: Sequence[str]) -> tuple[str, str | None, str]:
    """The text before the first mark, that mark, and the text after it.

    Without a mark, the third item is the longest suffix of the text that may begin a mark.
    """
    found = min(((text.find(mark), mark) for mark in marks if mark in text), default=None)
    if found is not None:
        start, mark = found
        return text[:start], mark, text[start + len(mark) :]
    longest = min(len(text), max(map(len, marks), default=0) - 1)
    ends = (text[-n:] for n in range(longest, 0, -1))
    held = next((end for end in ends if any(mark.startswith(end) for mark in marks)), "")
    return text.removesuffix(held), None, held


class MarkFilter:
    """Removes marks from a text. There may be hundreds, so one pattern and one set find them."""

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
