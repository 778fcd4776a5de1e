"""Parts of a chat's generated text that are not its content, so that no stop string or regex counts
there: reasoning and tool calls."""

from typing import NamedTuple


class StopSpan(NamedTuple):
    """A part of a text from one delimiter to another."""

    opening: str
    """Empty if the text begins inside the span."""
    closing: str
    is_json: bool = False
    """Whether the span is JSON, so that the closing delimiter counts outside strings and brackets
    only."""
    dropped: str = ""
    """Characters that are no content either where they follow the span."""
    separator: str = ""
    """A text that is no content either where it follows the span and these characters."""
