"""Splits generated text into the parts of an assistant message, while it arrives or afterwards."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from completions.chat.call_parser import Arguments, CallParser, CallStart, Part
from completions.chat.custom_input import InputReader
from completions.chat.markers import MarkerFilter
from completions.chat.reasoning import ReasoningParser


@dataclass(frozen=True, slots=True)
class CallDelta:
    """The next piece of a call. `name` is set only in the first piece."""

    index: int
    name: str | None
    arguments: str
    """The input, if the tool is custom."""
    is_custom: bool = False


@dataclass(slots=True)
class Delta:
    """The next piece of a message."""

    reasoning: str = ""
    content: str = ""
    calls: list[CallDelta] = field(default_factory=list)


class OutputParser:
    """Parser of one choice's message. However its text is split, the joined deltas are the same."""

    def __init__(
        self,
        thinking: ReasoningParser | None = None,
        calls: CallParser | None = None,
        hidden: Sequence[str] = (),
        unseen: Sequence[str] = (),
        custom: Collection[str] = (),
    ) -> None:
        """Parse with the given parsers. The special tokens `hidden` are removed from the text, and
        `unseen` from the content. The tools named `custom` have an input instead of arguments."""
        self._thinking = thinking
        self._calls = calls
        self._hidden = MarkerFilter(hidden)
        self._unseen = MarkerFilter(unseen)
        self._custom = custom
        self._input: InputReader | None = None  # of the latest call
        self._num_calls = 0
        self._whitespace = ""  # dropped if a call follows

    @property
    def is_reasoning(self) -> bool:
        return self._thinking is not None and self._thinking.is_reasoning

    @property
    def has_called(self) -> bool:
        """Whether there are calls and all are complete."""
        return self._num_calls > 0 and not (self._calls and self._calls.is_in_call)

    def push(self, text: str) -> Delta:
        return self._split(self._hidden.push(text))

    def finish(self, *, is_cut: bool = False) -> Delta:
        """Return the text that was held back; no more text follows. `is_cut` says that a limit
        ended it."""
        delta = self._split(self._hidden.finish())
        if self._thinking is not None:
            reasoning, answer = self._thinking.finish()
            delta.reasoning += reasoning
            self._push_answer(answer, delta)
        if self._calls is not None:
            self._take(self._calls.finish(is_cut=is_cut), delta)
            self._end_input(delta)
        self._add_text(self._unseen.finish(), delta)
        if not self._num_calls:
            delta.content += self._whitespace
        return delta

    def _split(self, text: str) -> Delta:
        delta = Delta()
        if self._thinking is not None:
            delta.reasoning, text = self._thinking.push(text)
        self._push_answer(text, delta)
        return delta

    def _push_answer(self, text: str, delta: Delta) -> None:
        if self._calls is None:
            delta.content += self._unseen.push(text)
        elif text:
            self._take(self._calls.push(text), delta)

    def _take(self, parts: list[Part], delta: Delta) -> None:
        for part in parts:
            if isinstance(part, CallStart):
                self._add_text(self._unseen.finish(), delta)
                self._whitespace = ""
                self._end_input(delta)
                is_custom = part.name in self._custom
                self._input = InputReader() if is_custom else None
                delta.calls.append(CallDelta(self._num_calls, part.name, "", is_custom))
                self._num_calls += 1
            elif isinstance(part, Arguments):
                text = part.text if self._input is None else self._input.read(part.text)
                self._add_arguments(text, delta)
            else:
                self._add_text(self._unseen.push(part.text), delta)

    def _end_input(self, delta: Delta) -> None:
        if self._input is not None:
            self._add_arguments(self._input.finish(), delta)
            self._input = None

    def _add_arguments(self, text: str, delta: Delta) -> None:
        if text:
            is_custom = self._input is not None
            _extend(delta.calls, CallDelta(self._num_calls - 1, None, text, is_custom))

    def _add_text(self, text: str, delta: Delta) -> None:
        text = self._whitespace + text
        visible = text.rstrip()
        self._whitespace = text[len(visible) :]
        delta.content += visible


def _extend(calls: list[CallDelta], piece: CallDelta) -> None:
    """Append a piece of arguments. Merge it into the last piece if both are of the same call."""
    if calls and calls[-1].index == piece.index:
        last = calls.pop()
        piece = replace(last, arguments=last.arguments + piece.arguments)
    calls.append(piece)
