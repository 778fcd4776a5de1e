"""Splits generated text into the parts of an assistant message, while it arrives or afterwards."""

from collections.abc import Sequence

from completions.chat.call_parser import CallParser
from completions.chat.delta import Delta, DeltaWriter
from completions.chat.markers import MarkerFilter
from completions.chat.reasoning import ReasoningParser


class OutputParser:
    """Parser of one choice's message. However its text is split, the joined deltas are the same."""

    def __init__(
        self,
        thinking: ReasoningParser | None = None,
        calls: CallParser | None = None,
        hidden: Sequence[str] = (),
        unseen: Sequence[str] = (),
        around: tuple[str, str] = ("", ""),
    ) -> None:
        """Parse with the given parsers. The special tokens `hidden` are removed from the text,
        `unseen` from the content, and the texts `around` it from its ends."""
        self._thinking = thinking
        self._calls = calls
        self._hidden = MarkerFilter(hidden)
        self._writer = DeltaWriter(unseen, around, may_call=calls is not None)
        if calls is not None:
            calls.start(self._writer)

    @property
    def is_reasoning(self) -> bool:
        return self._thinking is not None and self._thinking.is_reasoning

    @property
    def has_called(self) -> bool:
        """Whether there are calls and all are complete."""
        return self._writer.num_calls > 0 and not (self._calls and self._calls.is_in_call)

    def push(self, text: str) -> Delta:
        self._push(self._hidden.push(text))
        return self._writer.take()

    def finish(self, *, is_cut: bool = False) -> Delta:
        """Return the text that was held back; no more text follows. `is_cut` says that a limit
        ended it."""
        self._push(self._hidden.finish())
        if self._thinking is not None:
            reasoning, answer = self._thinking.finish()
            self._writer.delta.reasoning += reasoning
            self._push_answer(answer)
        if self._calls is not None:
            self._calls.finish(is_cut=is_cut)
        self._writer.finish()
        return self._writer.take()

    def _push(self, text: str) -> None:
        if self._thinking is not None and not self._thinking.is_done:
            self._writer.delta.reasoning, text = self._thinking.push(text)
        self._push_answer(text)

    def _push_answer(self, text: str) -> None:
        if self._calls is None:
            self._writer.add_text(text)
        elif text:
            self._calls.push(text)
