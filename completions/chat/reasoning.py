"""The reasoning in an answer: its think tags, a parser that splits it off, and a counter."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from completions.chat.markers import compile_markers, find_marks
from completions.contract.stop_spans import StopSpan

ENABLED, DISABLED, AUTO = "enabled", "disabled", "auto"
_NEWLINES = 2
"""Line breaks between the end of the reasoning and the answer that belong to neither."""


class ThinkTags(NamedTuple):
    """The tags around a model's reasoning."""

    begin: str
    end: str

    @property
    def delimiters(self) -> list[str]:
        """The tags, and the parts of them that may be special tokens of the model."""
        parts = [mark for tag in (self.begin, self.end) for mark in find_marks(tag)]
        return [self.begin, self.end, *parts]

    def make_span(self, *, is_open: bool) -> StopSpan:
        """Return the reasoning in an answer's text, with the line breaks behind them."""
        return StopSpan("" if is_open else self.begin, self.end, dropped="\n")

    def is_open_in(self, prompt: str) -> bool:
        """Return whether a prompt ends inside reasoning: some templates write the first tag."""
        return prompt.rstrip().endswith(self.begin)

    def is_open_after(self, answer: str) -> bool:
        """Return whether the beginning of an answer ends inside reasoning."""
        return answer.lstrip().startswith(self.begin) and self.end not in answer

    def is_closed_in(self, prompt: str) -> bool:
        """Return whether a prompt ends after reasoning, as in templates that switch it off."""
        return prompt.rstrip().endswith(self.end)


class ReasoningParser:
    """Splitter of text into reasoning and answer as it arrives, whatever its pieces are."""

    def __init__(
        self, tags: ThinkTags, *, is_open: bool, calls: Sequence[str] = (), lead: str = ""
    ) -> None:
        """`calls` are texts that begin a call, and so end the reasoning. In formats with channels,
        `lead` is the text after which more reasoning may begin."""
        self._tags = tags
        self._ends = compile_markers(tags.end, *calls)
        self._again = compile_markers(lead + tags.begin) if lead else None
        self._is_open = is_open
        self._state = "undecided"
        self._buffer = ""
        self._newlines = _NEWLINES
        self._begun = False
        self._joint = ""  # before the next text of reasoning
        self.num_begun = 0
        """How often a tag began reasoning."""
        self.is_done = False
        """Whether all that follows is the answer."""

    @property
    def is_reasoning(self) -> bool:
        return self._state == "thinking" or (self._state == "undecided" and self._is_open)

    def push(self, text: str) -> tuple[str, str]:
        """Return what this text adds to the reasoning and to the answer."""
        self._buffer += text
        if self._state == "undecided":
            self._decide()
        reasoning, answer = "", ""
        state = ""
        while self._state not in ("undecided", state):
            state = self._state
            if state == "thinking":
                reasoning += self._take_reasoning()
            else:
                answer += self._take_answer()
        return reasoning, answer

    def finish(self) -> tuple[str, str]:
        """Return the same for the text that was held back. Trailing white space of reasoning is
        dropped."""
        left, self._buffer = self._buffer, ""
        if self.is_reasoning:
            text = left.rstrip()
            return (self._joint + text if text else ""), ""
        return "", left

    def _decide(self) -> None:
        """Look for the begin tag. Models repeat that of the prompt."""
        begun = self._buffer.lstrip()
        if begun.startswith(self._tags.begin):
            self._state = "thinking"
            self.num_begun += 1
            self._buffer = begun[len(self._tags.begin) :]
        elif not self._tags.begin.startswith(begun):
            self._state = "thinking" if self._is_open else "answering"
            self._newlines = _NEWLINES if self._is_open else 0

    def _take_reasoning(self) -> str:
        reasoning, tag, rest = self._ends.split(self._buffer)
        visible = reasoning.rstrip()
        if tag is None:  # trailing white space may precede the tag
            self._buffer = reasoning[len(visible) :] + rest
        else:
            self._state = "answering"
            self._buffer = rest if tag == self._tags.end else tag + rest
        if not self._begun:
            visible = visible.lstrip()
            self._begun = bool(visible)
        joint, self._joint = (self._joint, "") if visible else ("", self._joint)
        return joint + visible

    def _take_answer(self) -> str:
        while self._newlines and self._buffer.startswith("\n"):
            self._buffer = self._buffer[1:]
            self._newlines -= 1
        if self._buffer:
            self._newlines = 0
        if self._again is None:
            answer, self._buffer = self._buffer, ""
            self.is_done = not self._newlines
            return answer
        answer, again, self._buffer = self._again.split(self._buffer)
        if again is not None:
            self.num_begun += 1
            self._state, self._newlines = "thinking", _NEWLINES
            self._joint = "\n" if self._begun else ""
        return answer


class ReasoningCounter:
    """Counter of reasoning tokens, including the last token of each tag."""

    def __init__(
        self,
        tags: ThinkTags,
        *,
        is_open: bool,
        hidden: Sequence[str] = (),
        calls: Sequence[str] = (),
        lead: str = "",
    ) -> None:
        """Count for one choice. The special tokens `hidden` may precede the begin tag, the texts
        `calls` end the reasoning too, and more of it may begin after the text `lead`."""
        begin, end, lead, *calls = map(_spell_bytes, (*tags, lead, *calls))
        self._parser = ReasoningParser(
            ThinkTags(begin, end), is_open=is_open, calls=calls, lead=lead
        )
        self._hidden = {token.encode() for token in hidden}
        self.count = 0

    def push(self, tokens: Iterable[bytes]) -> None:
        """Count further tokens, each given as its bytes in the text."""
        for token in tokens:
            if self._parser.is_done:
                return
            if self.count or token not in self._hidden:
                before = self._parser.is_reasoning, self._parser.num_begun
                self._parser.push(token.decode("latin-1"))
                self.count += before != (False, self._parser.num_begun) or self._parser.is_reasoning


def _spell_bytes(text: str) -> str:
    """Return a text with a character for each byte, since a token may end within a character."""
    return text.encode().decode("latin-1")
