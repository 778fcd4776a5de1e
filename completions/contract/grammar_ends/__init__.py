"""The shortest way to the end of a grammar, as far as a bounded search finds it.

llguidance has no question for it, but its matchers are copied and advanced in a microsecond. So the
search tries texts, the cheapest first: those that close what is open, then those that begin the
least, then any other. What it finds is checked with the matcher itself, so it is an end; that there
is none, or none shorter, it cannot prove.
"""

from completions.contract.grammar_ends.search import find_way
from completions.contract.grammar_ends.tokens import NO_TEXTS, EndTokens, GrammarTexts, Way
from completions.contract.grammar_ends.ways import (
    adapt_way,
    find_suffix,
    is_accepting,
    is_broken,
    leads_to_end,
    reuse_way,
)

__all__ = [
    "NO_TEXTS",
    "EndTokens",
    "GrammarTexts",
    "Way",
    "adapt_way",
    "find_suffix",
    "find_way",
    "is_accepting",
    "is_broken",
    "leads_to_end",
    "reuse_way",
]
