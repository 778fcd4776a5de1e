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


def find_least(grammar: str, source: TokenSource, enough: int) -> LeastTokens:
    """Return what is known of the shortest text of an llguidance grammar that was validated. A
    first text of at most `enough` tokens ends the search; without one, it takes seconds."""
    first = _find_first(grammar, source)
    if first is not None and first <= enough:
        return LeastTokens(0, first)
    return _find_shortest(grammar, source)


@lru_cache(1024)
def _find_first(grammar: str, source: TokenSource) -> int | None:
    return _measure_way(grammar, source, enough=_MAX_STEPS)


@lru_cache(1024)
def _find_shortest(grammar: str, source: TokenSource) -> LeastTokens:
    bounds = find_bounds(grammar, source)
    found = [_find_first(grammar, source), bounds.min_tokens]
    if found[0] is not None:  # else a second search finds none either
        found.append(_measure_way(grammar, source, enough=bounds.at_least))
    known = (length for length in found if length is not None)
    return LeastTokens(bounds.at_least, min(known, default=None))


def _measure_way(grammar: str, source: TokenSource, enough: int) -> int | None:
    """Return the tokens of a way from the beginning to an end."""
    matcher = LLMatcher(tokens.load(source), grammar, log_level=0, limits=VALIDATION_LIMITS)
    written = _load_end_tokens(source)
    way = find_way(matcher, written, written.read_texts(grammar), _MAX_STEPS, enough)
    return None if way is None else len(way)


@lru_cache(4)
def _load_end_tokens(source: TokenSource) -> EndTokens:
    read = TokenBytes(Tokenizer.from_file(source.tokenizer_file))
    table = read.make_table(source.size)
    return EndTokens(tokens.load(source), table, read.special_ids, source.eos_token_ids)
