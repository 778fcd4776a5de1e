"""Asks llguidance, byte by byte, whether a grammar matches a text."""

from llguidance import LLMatcher, LLTokenizer

from completions.contract.llguidance_limits import VALIDATION_LIMITS

BYTES = LLTokenizer("byte")


def accepts(grammar: str, text: str) -> bool:
    matcher = LLMatcher(BYTES, grammar, log_level=0, limits=VALIDATION_LIMITS)
    assert not matcher.is_error(), matcher.get_error()
    encoded = text.encode()
    whole = matcher.try_consume_tokens(list(encoded)) == len(encoded)
    assert not matcher.is_error(), matcher.get_error()
    return whole and bool(matcher.is_accepting())
