"""Parts of a chat's generated text that are not its content, so that no stop string or regex counts
there: thoughts and tool calls."""

from typing import NamedTuple


class StopSpan(NamedTuple):
    """A part of a text from one mark to another."""

    opening: str
    """Empty if the text begins inside the span."""
    closing: str
    is_json: bool = False
    """Whether the span is JSON, so that the closing mark counts outside strings and brackets
    only."""
    dropped: str = ""
    """Characters that are no content either where they follow the span."""
