"""What the output must match, as a request asks for it."""

from typing import Any, NamedTuple

from completions.grammars.limits import COMPACT


class Constraint(NamedTuple):
    """What the output must match: the request field and its value."""

    field: str
    value: Any
    whitespace: str = COMPACT
    """Between the tokens of JSON: `compact` has none, `flexible` a bounded run."""
    place: str = ""
    """Where in the request the value stands, if not in the field of that name."""

    @property
    def named(self) -> str:
        """What errors call it."""
        return self.place or self.field
