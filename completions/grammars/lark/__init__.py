"""Grammars that a client wrote for llguidance: Lark, and llguidance's lists of grammars."""

from completions.grammars.lark.bundle import screen, screen_text, translate, translate_text

__all__ = ["screen", "screen_text", "translate", "translate_text"]
