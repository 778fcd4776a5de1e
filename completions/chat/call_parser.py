"""Splits generated text into free text and tool calls, in text order, as it arrives."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from completions.chat.markers import split_at


@dataclass(frozen=True, slots=True)
class Text:
    """Part of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool is called; its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """The next piece of the JSON arguments of the latest call."""

    text: str


Part = Text | CallStart | Arguments


class CallParser(ABC):
    """Finder of tool calls. However the text is split, the joined parts are the same.

    Text that turns out not to be a call becomes Text; nothing raises. Each state is a method that
    appends parts and returns whether there may be more to do.
    """

    def __init__(self, opening: str, kept_prefix: str = "", between: str | None = None) -> None:
        """`opening` begins a call; its suffix `kept_prefix` belongs to the header. `between` holds
        the characters that are dropped after a call, by default white space."""
        self._mark = opening
        self._kept = kept_prefix
        self._between = between
        self._buffer = ""
        self._step = self._parse_text
        self._after_call = False

    @property
    def is_in_call(self) -> bool:
        """Whether a call has begun and not ended."""
        return self._step != self._parse_text

    def push(self, text: str) -> list[Part]:
        self._buffer += text
        parts: list[Part] = []
        while self._step(parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        """Return the last parts; no more text follows."""
        left, self._buffer = self._buffer, ""
        if self._step == self._parse_header:
            self._step = self._parse_text
            return [self._make_text(left)]
        return [Text(left)] if left and self._step == self._parse_text else []

    def _make_text(self, text: str) -> Text:
        return Text(self._mark.removesuffix(self._kept) + text)

    def _parse_text(self, parts: list[Part]) -> bool:
        if self._after_call:
            self._buffer = self._buffer.lstrip(self._between)
            self._after_call = not self._buffer
        before, marker, self._buffer = split_at(self._buffer, (self._mark,))
        if before:
            parts.append(Text(before))
        if marker is None:
            return False
        self._buffer = self._kept + self._buffer
        self._step = self._parse_header
        return True

    @abstractmethod
    def _parse_header(self, parts: list[Part]) -> bool:
        """Read up to the arguments."""

    def _end_call(self) -> None:
        self._step = self._parse_text
        self._after_call = True
