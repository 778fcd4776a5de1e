"""Structural tags: free text, constants and tags around JSON, patterns and grammars."""

from completions.grammars.structural_tag.translation import (
    ANSWER,
    screen,
    translate,
    translate_answer,
)

__all__ = ["ANSWER", "screen", "translate", "translate_answer"]
