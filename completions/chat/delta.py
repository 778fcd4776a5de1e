"""What a message gains from a piece of the model's text."""

from collections.abc import Sequence

from msgspec import Struct

from completions.chat.custom_input import InputReader
from completions.chat.markers import MarkerFilter


class CallDelta(Struct):
    """The next piece of a call. `name` is set only in the first piece."""

    index: int
    name: str | None
    arguments: str
    """The input, if the tool is custom."""
    is_custom: bool = False


class Delta(Struct):
    """The next piece of a message."""

    reasoning: str = ""
    content: str = ""
    calls: list[CallDelta] = []


class DeltaWriter:
    """Writer of the deltas of one message."""

    def __init__(
        self,
        unseen: Sequence[str] = (),
        around: tuple[str, str] = ("", ""),
        *,
        may_call: bool = True,
    ) -> None:
        """The texts `unseen` are removed from the content, and those `around` it from its ends.
        White space beside calls stays only between texts."""
        self.delta = Delta()
        self.num_calls = 0
        self._unseen = MarkerFilter(unseen)
        self._begin, self._end = around
        self._holds = may_call or any(around)
        self._held = ""  # white space and what may end the content, or begin it
        self.has_content = False  # yet
        self._input: InputReader | None = None  # of the latest call

    def take(self) -> Delta:
        """Return what was written since the last time."""
        delta, self.delta = self.delta, Delta()
        return delta

    def add_text(self, text: str) -> None:
        self._add_seen(self._unseen.push(text))

    def _add_seen(self, text: str) -> None:
        if self._holds:
            text = self._held + text
            if self._begin and text:
                begun, _, inner = text.lstrip().partition(self._begin)
                if not inner.strip("\n") and self._begin.startswith(begun):
                    self._held = text
                    return
                text, self._begin = text if begun else inner.lstrip("\n"), ""
            visible = text.rstrip()
            if self._end:
                at = visible.rfind(self._end[0], max(len(visible) - len(self._end), 0))
                if at >= 0 and self._end.startswith(visible[at:]):
                    visible = visible[:at].rstrip()
            self._held = text[len(visible) :]
            text = visible
        if text:
            self.delta.content += text
            self.has_content = True

    def _end_part(self) -> None:
        """Write what was held back, but white space."""
        self._add_seen(self._unseen.finish())
        held = self._held.strip()
        if held and held in (self._begin, self._end):
            self._held = ""
        elif held:
            self.delta.content += self._held.rstrip()
            self._held = self._held[len(self._held.rstrip()) :]
        if self._input is not None:
            self._extend_call(self._input.finish())
            self._input = None

    def begin_call(self, name: str, *, is_custom: bool) -> None:
        self._end_part()
        if not self.has_content:
            self._held = ""
        self._input = InputReader() if is_custom else None
        self.delta.calls.append(CallDelta(self.num_calls, name, "", is_custom))
        self.num_calls += 1

    def add_arguments(self, text: str) -> None:
        self._extend_call(text if self._input is None else self._input.read(text))

    def _extend_call(self, text: str) -> None:
        calls = self.delta.calls
        if text and not calls:
            calls.append(CallDelta(self.num_calls - 1, None, text, self._input is not None))
        elif text:
            calls[-1].arguments += text

    def finish(self) -> None:
        """Write the rest. White space at the end is dropped only if there were calls."""
        self._end_part()
        if not self.num_calls:
            self.delta.content += self._held
