"""The reasoning in an answer: its think tags, a parser that splits it off, and a counter."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from completions.chat.markers import find_marks, split_at
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
        self._ends = (tags.end, *calls)
        self._again = (lead + tags.begin,) if lead else ()
        self._is_open = is_open
        self._state = "undecided"
        self._buffer = ""
        self._newlines = _NEWLINES
        self._begun = False
        self._joint = ""  # before the next text of reasoning

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
            self._buffer = begun[len(self._tags.begin) :]
        elif not self._tags.begin.startswith(begun):
            self._state = "thinking" if self._is_open else "answering"
            self._newlines = _NEWLINES if self._is_open else 0

    def _take_reasoning(self) -> str:
        reasoning, tag, rest = split_at(self._buffer, self._ends)
        if tag is None:  # trailing white space may precede the tag
            rest = reasoning[len(reasoning.rstrip()) :] + rest
        else:
            self._state = "answering"
            rest = rest if tag == self._tags.end else tag + rest
        self._buffer = rest
        visible = reasoning.rstrip()
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
        answer, again, self._buffer = split_at(self._buffer, self._again)
        if again is not None:
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
        self._again = (lead + tags.begin).encode() if lead else b""
        self._begin, self._ends = tags.begin.encode(), [e.encode() for e in (tags.end, *calls)]
        self._longest = max(map(len, self._ends))
        self._hidden = {token.encode() for token in hidden}
        self._state = "thinking" if is_open else "undecided"
        self._seen = b""
        self.count = 0

    def push(self, tokens: Iterable[bytes]) -> None:
        """Count further tokens, each given as its bytes in the text."""
        for token in tokens:
            if self._state == "answering":
                if not self._again:
                    return
                self._watch(token)
                continue
            if self._state == "undecided" and token not in self._hidden:
                self._decide(token)
            elif self._state == "thinking":
                self._count_token(token)

    def _decide(self, token: bytes) -> None:
        begun = (self._seen + token).lstrip()
        if begun.startswith(self._begin):
            self._state, self._seen = "thinking", b""
            self._count_token(begun[len(self._begin) :])
        elif self._begin.startswith(begun):
            self._seen = begun
        else:
            self._state = "answering"

    def _watch(self, token: bytes) -> None:
        """Look for the beginning of more reasoning."""
        self._seen = (self._seen + token)[-len(self._again) :]
        if self._seen == self._again:
            self._state, self._seen = "thinking", b""
            self.count += 1

    def _count_token(self, token: bytes) -> None:
        self.count += 1
        seen = self._seen + token
        if any(end in seen for end in self._ends):
            self._state = "answering"
        self._seen = seen[-self._longest :]
