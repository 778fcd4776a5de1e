"""The limits that llguidance keeps, in the web tier and in the engine.

A lexer state takes 1-2 kB, 10,000 items take some 5 ms. No ordinary grammar needs a tenth of
either. Messages are terse: verbose ones quote the grammar and the generated text.
"""

import re

from llguidance import LLParserLimits

_MAX_LEXER_STATES, _STEP_LEXER_FUEL, _STEP_MAX_ITEMS = 50_000, 50_000, 10_000

ENGINE_LIMITS = LLParserLimits(
    max_lexer_states=_MAX_LEXER_STATES, step_lexer_fuel=_STEP_LEXER_FUEL,
    step_max_items=_STEP_MAX_ITEMS, verbose_errors=False,
)  # fmt: skip
"""For grammars that the web tier accepted."""
JUDGE_LIMITS = LLParserLimits(
    max_lexer_states=_MAX_LEXER_STATES, step_lexer_fuel=_STEP_LEXER_FUEL,
    step_max_items=_STEP_MAX_ITEMS, verbose_errors=False, initial_lexer_fuel=500_000,
)  # fmt: skip
"""For grammars of clients. Never looser than the engine's, which must be able to follow them."""

TOO_MANY_ITEMS = re.compile(r"too many items|current row has", re.IGNORECASE)
"""In llguidance's message when a grammar allows too many alternatives at once."""
TOO_MANY_STATES = re.compile(
    r"too many (expressions constructed|states)|lexer precomputation failed"
    r"|fuel exhausted|unable to determine if regex is empty",
    re.IGNORECASE,
)
"""In llguidance's message when the patterns of a grammar are too complex."""
