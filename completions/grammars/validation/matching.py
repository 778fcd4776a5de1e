"""How far a text fits a grammar, by the engine's matcher."""

import time
from dataclasses import dataclass

from llguidance import LLMatcher

from completions.contract.llguidance_limits import VALIDATION_LIMITS
from completions.grammars import tokens
from completions.grammars.compiler import Compiler
from completions.grammars.exceptions import GrammarError, GrammarTimeoutError
from completions.grammars.messages import explain_error
from completions.grammars.tokens import ByteView

_CHUNK = 100
"""Bytes between two checks of the time."""


@dataclass(frozen=True, slots=True)
class Match:
    """Whether a grammar accepts a text, and the length of the prefix that it can go on from."""

    accepts: bool
    matched_prefix: int


def match(grammar: str, text: str, compiler: Compiler) -> Match:
    """Raise GrammarError if the grammar becomes too complex on the way, and GrammarTimeoutError if
    the text takes too much processor time: a thread could not be stopped."""
    view = tokens.load_byte_view(compiler.tokens)
    matcher = LLMatcher(view.tokenizer, grammar, log_level=0, limits=VALIDATION_LIMITS)
    encoded = text.encode()
    fitting = _consume(matcher, encoded, view, compiler.limits.seconds)
    if matcher.is_error():
        raise GrammarError(explain_error(matcher.get_error()))
    whole = fitting == len(encoded)
    characters = len(encoded[:fitting].decode(errors="ignore"))
    return Match(whole and bool(matcher.is_accepting()), characters)


def _consume(matcher: LLMatcher, encoded: bytes, view: ByteView, seconds: float) -> int:
    """Return the number of bytes that fit. Where a byte does not fit, tries a token that begins
    there."""
    position, began = 0, time.thread_time()
    while position < len(encoded):
        if time.thread_time() - began > seconds:
            message = f"trying the text took longer than {seconds:g} seconds; try a shorter one"
            raise GrammarTimeoutError(message)
        ids = [view.first_byte + byte for byte in encoded[position : position + _CHUNK]]
        taken = matcher.try_consume_tokens(ids)
        position += taken
        if matcher.is_error():
            break
        if taken == len(ids):
            continue
        for id, length in view.iter_tokens(encoded, position):
            if matcher.validate_tokens([id]):
                matcher.consume_token(id)
                position += length
                break
        else:
            break
    return position
