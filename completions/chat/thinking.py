"""The part of an answer in which a model thinks: what marks it, and splitting it off."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from completions.chat.markers import split_at

ENABLED, DISABLED, AUTO = "enabled", "disabled", "auto"
_NEWLINES = 2
"""Line breaks between the end of thinking and the answer that belong to neither."""


@dataclass(frozen=True, slots=True)
class Marks:
    """What a model writes around its thoughts."""

    begin: str
    end: str

    def open_in(self, prompt: str) -> bool:
        """Whether a prompt ends inside thoughts: some templates write the first mark."""
        return prompt.rstrip().endswith(self.begin)

    def closed_in(self, prompt: str) -> bool:
        """Whether a prompt ends behind thoughts: templates that switch thinking off do this."""
        return prompt.rstrip().endswith(self.end)


class ThinkingParser:
    """Splits text that arrives in pieces into thoughts and answer, however it is cut."""

    def __init__(self, marks: Marks, *, is_open: bool) -> None:
        self._marks = marks
        self._state = "thinking" if is_open else "undecided"
        self._buffer = ""
        self._newlines = _NEWLINES
        self._begun = False

    @property
    def thinking(self) -> bool:
        return self._state == "thinking"

    def push(self, text: str) -> tuple[str, str]:
        """What this adds to the thoughts and to the answer."""
        self._buffer += text
        if self._state == "undecided":
            self._decide()
        thoughts = self._think() if self._state == "thinking" else ""
        return thoughts, self._answer() if self._state == "answering" else ""

    def finish(self) -> tuple[str, str]:
        """The same for what was held back; thoughts end without white space."""
        left, self._buffer = self._buffer, ""
        if self._state == "thinking":
            return left.rstrip(), ""
        return "", left

    def _decide(self) -> None:
        begun = self._buffer.lstrip()
        if begun.startswith(self._marks.begin):
            self._state = "thinking"
            self._buffer = begun[len(self._marks.begin) :]
        elif not self._marks.begin.startswith(begun):
            self._state = "answering"
            self._newlines = 0

    def _think(self) -> str:
        thoughts, mark, rest = split_at(self._buffer, (self._marks.end,))
        if mark is None:  # white space at the end may stand before the mark
            rest = thoughts[len(thoughts.rstrip()) :] + rest
        else:
            self._state = "answering"
        self._buffer = rest
        shown = thoughts.rstrip()
        if not self._begun:
            shown = shown.lstrip()
            self._begun = bool(shown)
        return shown

    def _answer(self) -> str:
        while self._newlines and self._buffer.startswith("\n"):
            self._buffer = self._buffer[1:]
            self._newlines -= 1
        if self._buffer:
            self._newlines = 0
        answer, self._buffer = self._buffer, ""
        return answer


class ThoughtCounter:
    """Counts the tokens of thoughts, from the last of the begin mark to the last of the end mark,
    however they are grouped: an event may hold both thoughts and answer."""

    def __init__(self, marks: Marks, *, is_open: bool, hidden: Sequence[str] = ()) -> None:
        """`hidden` are special tokens that may stand before the begin mark."""
        self._begin, self._end = marks.begin.encode(), marks.end.encode()
        self._hidden = {mark.encode() for mark in hidden}
        self._state = "thinking" if is_open else "undecided"
        self._seen = b""
        self.count = 0

    def push(self, tokens: Iterable[bytes]) -> None:
        """What each further token contributes to the text."""
        for token in tokens:
            if self._state == "answering":
                return
            if self._state == "undecided" and token not in self._hidden:
                self._decide(token)
            elif self._state == "thinking":
                self._think(token)

    def _decide(self, token: bytes) -> None:
        begun = (self._seen + token).lstrip()
        if begun.startswith(self._begin):
            self._state, self._seen = "thinking", b""
            self._think(begun[len(self._begin) :])
        elif self._begin.startswith(begun):
            self._seen = begun
        else:
            self._state = "answering"

    def _think(self, token: bytes) -> None:
        self.count += 1
        seen = self._seen + token
        if self._end in seen:
            self._state = "answering"
        self._seen = seen[-len(self._end) :]
