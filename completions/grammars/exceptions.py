"""Why a constraint cannot be used, and what of it has no effect."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class Finding:
    """A keyword of a JSON constraint that is not enforced, and its JSON pointer."""

    keyword: str
    pointer: str
    message: str


class GrammarError(Exception):
    """The client's constraint is wrong. Lines and columns count from 1; None where unknown."""

    code = "invalid_grammar"

    def __init__(
        self,
        message: str,
        line: int | None = None,
        column: int | None = None,
        *,
        pointer: str | None = None,
        findings: Sequence[Finding] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column
        self.pointer = pointer
        """JSON pointer to the culprit, where the constraint is JSON."""
        self.findings = findings
        """All keywords that are not enforced, those only ignored included."""
        self.field = ""
        """The request field that held the constraint; set by `translate`."""

    @classmethod
    def at(cls, text: str, offset: int, message: str) -> Self:
        """About the character at an offset of the client's text."""
        line_start = text.rfind("\n", 0, offset) + 1
        return cls(message, text.count("\n", 0, offset) + 1, offset - line_start + 1)

    def inside(self, pointer: str) -> None:
        """Note that the JSON that it is about lies at a pointer."""
        if self.pointer is not None:
            self.pointer = pointer + self.pointer
        self.findings = [replace(each, pointer=pointer + each.pointer) for each in self.findings]

    def __str__(self) -> str:
        place = "" if self.line is None else f"line {self.line}, column {self.column}: "
        pointer = f" (at {self.pointer})" if self.pointer else ""
        return f"{self.field}: {place}{self.message}{pointer}"


class UnknownNodeError(GrammarError):
    """A structural tag holds a node of a type that does not exist, or is not served."""

    code = "unsupported_value"


class GrammarTimeoutError(GrammarError):
    """Judging took longer than the wall limit."""

    code = "grammar_timeout"


class GrammarOverloadError(GrammarError):
    """Too many grammars are being judged at once; this one was not looked at."""

    code = "server_overloaded"


ERRORS: dict[str, type[GrammarError]] = {
    kind.code: kind
    for kind in (GrammarError, UnknownNodeError, GrammarTimeoutError, GrammarOverloadError)
}
