"""Errors in constraints, and diagnostics about keywords that are not enforced."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from completions.grammars.messages import truncate

_MAX_POINTER = 200
"""Characters of a pointer in the text of an error; the pointer itself stays whole."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A keyword of a JSON constraint that is not enforced, with its JSON pointer."""

    keyword: str
    pointer: str
    message: str


class GrammarError(Exception):
    """A client's constraint cannot be used. Lines and columns count from 1; None if unknown."""

    code = "invalid_grammar"

    def __init__(
        self,
        message: str,
        line: int | None = None,
        column: int | None = None,
        *,
        pointer: str | None = None,
        diagnostics: Sequence[Diagnostic] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column
        self.pointer = pointer
        """JSON pointer to the fault, if the constraint is JSON."""
        self.diagnostics = diagnostics
        """All keywords that are not enforced, ignored ones included."""
        self.field = ""
        """The request field that held the constraint; set by `translate`."""

    @classmethod
    def at_offset(cls, text: str, offset: int, message: str) -> Self:
        """Return an error at an offset of the client's text."""
        line_start = text.rfind("\n", 0, offset) + 1
        return cls(message, text.count("\n", 0, offset) + 1, offset - line_start + 1)

    @staticmethod
    def format_location(text: str, offset: int) -> str:
        """Return an offset in a text, in words."""
        line_start = text.rfind("\n", 0, offset) + 1
        return f"line {text.count(chr(10), 0, offset) + 1}, column {offset - line_start + 1}"

    def prefix_pointer(self, pointer: str) -> None:
        """Prefix the pointers of the error and of its diagnostics with a pointer."""
        if self.pointer is not None:
            self.pointer = pointer + self.pointer
        self.diagnostics = [
            replace(each, pointer=pointer + each.pointer) for each in self.diagnostics
        ]

    def __str__(self) -> str:
        column = "" if self.column is None else f", column {self.column}"
        location = "" if self.line is None else f"line {self.line}{column}: "
        pointer = f" (at {truncate(self.pointer, _MAX_POINTER)})" if self.pointer else ""
        return f"{self.field}: {location}{self.message}{pointer}"


class UnknownNodeError(GrammarError):
    """A structural tag holds a node of an unknown or unsupported type."""

    code = "unsupported_value"


class GrammarTimeoutError(GrammarError):
    """Validation took longer than the time limit."""

    code = "grammar_timeout"


class GrammarOverloadError(GrammarError):
    """Too many grammars are being validated; this one was not."""

    code = "server_overloaded"


ERRORS: dict[str, type[GrammarError]] = {
    kind.code: kind
    for kind in (GrammarError, UnknownNodeError, GrammarTimeoutError, GrammarOverloadError)
}
