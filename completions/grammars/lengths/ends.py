"""How many tokens a text of a grammar needs, as far as a bounded search and the bounds tell."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from llguidance import LLMatcher
from tokenizers import Tokenizer

from completions.contract.grammar_ends import EndTokens, find_way
from completions.contract.llguidance_limits import VALIDATION_LIMITS
from completions.contract.token_bytes import TokenBytes
from completions.grammars import tokens
from completions.grammars.lengths.bounds import find_bounds
from completions.grammars.tokens import TokenSource

_MAX_STEPS: Final = 2000
"""Copies of the matcher that the search may take; about 0.1 s."""


@dataclass(frozen=True, slots=True)
class LeastTokens:
    """What is known of a grammar's shortest text."""

    at_least: int
    """No text has fewer tokens."""
    shortest: int | None
    """Tokens of the shortest text that was found; None if none was."""


@lru_cache(1024)
def find_least(grammar: str, source: TokenSource, enough: int) -> LeastTokens:
    """Return what is known of the shortest text of an llguidance grammar that was validated. The
    search ends with the first text of at most `enough` tokens; without one, it takes seconds."""
    matcher = LLMatcher(tokens.load(source), grammar, log_level=0, limits=VALIDATION_LIMITS)
    written = _load_end_tokens(source)
    way = find_way(matcher, written, written.read_literals(grammar), _MAX_STEPS, enough)
    if way is not None and len(way) <= enough:
        return LeastTokens(0, len(way))
    bounds = find_bounds(grammar, source)
    found = [] if way is None else [len(way)]
    found += [] if bounds.min_tokens is None else [bounds.min_tokens]
    return LeastTokens(bounds.at_least, min(found, default=None))


@lru_cache(4)
def _load_end_tokens(source: TokenSource) -> EndTokens:
    read = TokenBytes(Tokenizer.from_file(source.tokenizer_file))
    table = read.make_table(source.size)
    return EndTokens(tokens.load(source), table, read.special_ids, source.eos_token_ids)
