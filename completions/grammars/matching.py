"""How far a text fits a grammar, as the engine's matcher sees it."""

from dataclasses import dataclass

from llguidance import LLMatcher

from completions.grammars import vocabulary
from completions.grammars.compiler import Compiler, brief, limits
from completions.grammars.exceptions import GrammarError
from completions.grammars.vocabulary import ByteView


@dataclass(frozen=True, slots=True)
class Match:
    """Whether the whole text is in the language, and how many of its characters can begin one."""

    accepts: bool
    matched_prefix: int


def match(grammar: str, text: str, compiler: Compiler) -> Match:
    """Raises GrammarError when the grammar becomes too complex on the way."""
    view = vocabulary.load_byte_view(compiler.vocabulary)
    matcher = LLMatcher(view.tokenizer, grammar, log_level=0, limits=limits())
    encoded = text.encode()
    fitting = _consume(matcher, encoded, view)
    if matcher.is_error():
        raise GrammarError(brief(matcher.get_error()))
    whole = fitting == len(encoded)
    characters = len(encoded[:fitting].decode(errors="ignore"))
    return Match(whole and bool(matcher.is_accepting()), characters)


def _consume(matcher: LLMatcher, encoded: bytes, view: ByteView) -> int:
    """Bytes that fit. Where plain text does not, a token that spells it may be asked for."""
    position = 0
    while position < len(encoded):
        ids = [view.first_byte + byte for byte in encoded[position:]]
        position += matcher.try_consume_tokens(ids)
        if position == len(encoded) or matcher.is_error():
            break
        token = next(
            (
                each
                for each in view.tokens_at(encoded, position)
                if matcher.validate_tokens([each[0]])
            ),
            None,
        )
        if token is None:
            break
        matcher.consume_token(token[0])
        position += token[1]
    return position
