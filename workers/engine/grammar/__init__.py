"""Grammars become masks of allowed tokens, through llguidance."""
