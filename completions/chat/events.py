"""What a parser finds in generated text, in the order of the text."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Text:
    """Part of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A tool is called; its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """The next piece of the JSON text of the arguments of the call that began last."""

    text: str


Event = Text | CallBegun | Arguments


class CallParser(Protocol):
    """Finds tool calls in text that arrives in pieces: however it is cut, the events' texts
    joined are the same. What is no call after all comes out as Text; nothing raises."""

    @property
    def in_call(self) -> bool:
        """Whether a call has begun and not ended."""

    def push(self, text: str) -> list[Event]: ...

    def finish(self) -> list[Event]:
        """No more text follows."""
