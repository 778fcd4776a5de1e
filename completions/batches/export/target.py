"""The target of an export, and its report: how many rows, and of what kind."""

from dataclasses import dataclass
from typing import Protocol

from completions.batches.export.rows import ExportRow, Source


class Target(Protocol):
    """A place for the rows of a batch. Its methods raise ExportError."""

    def check(self) -> None:
        """Fail now rather than after the batch has run."""

    def write(self, source: Source) -> "Report":
        """Write all rows that are not there yet."""


@dataclass(slots=True)
class Report:
    """Counts of rows."""

    place: str
    rows: int = 0
    errors: int = 0
    there: int = 0
    """Rows that an interrupted export wrote."""
    not_whole: int = 0
    """Answers that are not JSON of the schema's type: cut by max_tokens, for example."""
    misfits: int = 0
    """Values that their column cannot hold."""

    def add(self, row: ExportRow) -> None:
        self.rows += 1
        self.errors += row.values["error_code"] is not None
        self.not_whole += not row.is_whole

    def __str__(self) -> str:
        there = f", {self.there} were there already" if self.there else ""
        text = f"{self.rows} rows in {self.place}, {self.errors} with an error{there}"
        if self.not_whole:
            text += f"\nanswers that are not whole JSON: {self.not_whole}; see the column text"
        if self.misfits:
            text += f"\nvalues that do not fit their columns: {self.misfits}; see the column text"
        return text
