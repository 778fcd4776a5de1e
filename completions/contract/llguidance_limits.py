"""llguidance's resource limits, for the web tier and for the engine.

A lexer state takes 1-2 kB; 10,000 items take some 5 ms. No ordinary grammar needs a tenth of either
limit. Messages are terse, because verbose ones quote the grammar and the generated text.
"""

import re
from functools import partial

from llguidance import LLParserLimits

_make_limits = partial(
    LLParserLimits,
    max_lexer_states=50_000,
    step_lexer_fuel=50_000,
    verbose_errors=False,
    precompute_large_lexemes=False,
)
# If the fuel runs out while llguidance precomputes large patterns, it drops texts without an error.
ENGINE_LIMITS = _make_limits(step_max_items=20_000)
"""For grammars that the web tier has accepted. Its trial covers some texts only, and a step near
the end of a count takes more items: some 10,000 for `[^a]{0,80}`."""
VALIDATION_LIMITS = _make_limits(initial_lexer_fuel=500_000, step_max_items=10_000)
"""For clients' grammars. Never weaker than the engine's, which must be able to run them."""

TOO_MANY_ITEMS = re.compile(r"too many items|current row has", re.IGNORECASE)
"""Matches llguidance's message for a grammar that allows too many alternatives at once."""
TOO_MANY_STATES = re.compile(
    r"too many (expressions constructed|states)|lexer precomputation failed"
    r"|fuel exhausted|unable to determine if regex is empty",
    re.IGNORECASE,
)
"""Matches llguidance's message for a grammar whose patterns are too complex."""
