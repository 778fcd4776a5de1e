"""The thoughts in an answer: their marks, a parser that splits them off, and a counter."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from completions.chat.markers import split_at
from completions.contract.stop_spans import StopSpan

ENABLED, DISABLED, AUTO = "enabled", "disabled", "auto"
_NEWLINES = 2
"""Line breaks between the end of the thoughts and the answer that belong to neither."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks around a model's thoughts."""

    begin: str
    end: str

    def span(self, *, is_open: bool) -> StopSpan:
        """The thoughts in an answer's text, with the line breaks behind them."""
        return StopSpan("" if is_open else self.begin, self.end, dropped="\n")

    def open_in(self, prompt: str) -> bool:
        """Whether a prompt ends inside thoughts: some templates write the first mark."""
        return prompt.rstrip().endswith(self.begin)

    def closed_in(self, prompt: str) -> bool:
        """Whether a prompt ends after thoughts, as in templates that switch thinking off."""
        return prompt.rstrip().endswith(self.end)


class ThinkingParser:
    """Splits text into thoughts and answer as it arrives, whatever its pieces are."""

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
        """Return what this text adds to the thoughts and to the answer."""
        self._buffer += text
        if self._state == "undecided":
            self._decide()
        thoughts = self._think() if self._state == "thinking" else ""
        return thoughts, self._answer() if self._state == "answering" else ""

    def finish(self) -> tuple[str, str]:
        """The same for the text that was held back. Trailing white space of thoughts is dropped."""
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
        if mark is None:  # trailing white space may precede the mark
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
    """Counts the tokens of the thoughts, including the last token of each mark."""

    def __init__(self, marks: Marks, *, is_open: bool, hidden: Sequence[str] = ()) -> None:
        """`hidden` are special tokens that may precede the begin mark."""
        self._begin, self._end = marks.begin.encode(), marks.end.encode()
        self._hidden = {mark.encode() for mark in hidden}
        self._state = "thinking" if is_open else "undecided"
        self._seen = b""
        self.count = 0

    def push(self, tokens: Iterable[bytes]) -> None:
        """Count further tokens, each given as its bytes in the text."""
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
