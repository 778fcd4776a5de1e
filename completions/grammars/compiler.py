"""llguidance asked whether it can follow a grammar with a model's tokens."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from llguidance import LLMatcher, LLParserLimits

from completions.grammars import vocabulary
from completions.grammars.exceptions import Finding
from completions.grammars.limits import DEFAULT_LIMITS, Limits
from completions.grammars.vocabulary import Vocabulary

# Locations and excerpts in its messages speak of generated text that the client never saw.
_LOCATION = re.compile(r"^(at )?\d+\(\d+\): ")

_PATTERN_ERROR = re.compile(r"regex parse error:.*\nerror: ([^\n]*)", re.DOTALL)
_LEXER = "too complex; simplify its patterns and repetitions"
TOO_MANY_ALTERNATIVES = "too complex; it allows too many alternatives at once"
_LOOK_AROUND = re.compile(r"lookarounds not supported yet; (Start|End|Word)")
_ANCHORS = {
    "Start": "^ is supported at the beginning of a pattern only",
    "End": "$ is supported at the end of a pattern only",
    "Word": r"\b and \B are not supported; write out what may stand there",
}
_INTERNALS = re.compile(r":  \(.*")
"""A pattern as llguidance holds it, in no syntax that clients know."""
_STOP_REASONS = {
    "NoExtensionBias": "no text can match this grammar",
    "LexerTooComplex": _LEXER,
    "ParserTooComplex": TOO_MANY_ALTERNATIVES,
}
# Messages about llguidance's limits advise to raise them, which clients cannot.
_TOO_MANY_ITEMS = re.compile(r"parser error: (too many items|current row has)", re.IGNORECASE)
_TOO_MANY_STATES = re.compile(
    r"too many (expressions constructed|states)|lexer precomputation failed"
    r"|fuel exhausted|unable to determine if regex is empty",
    re.IGNORECASE,
)


@lru_cache
def limits() -> LLParserLimits:
    """Never looser than the engine's, so that what passes here passes there.

    Tighter than llguidance's own: a lexer state takes 1-2 kB, 10,000 items some 5 ms, and no
    ordinary grammar needs half of any of these for a token.
    """
    return LLParserLimits(
        max_lexer_states=50_000, initial_lexer_fuel=500_000, step_lexer_fuel=50_000,
        step_max_items=10_000, verbose_errors=False,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Translated:
    """A grammar that llguidance takes, and what of the constraint has no effect in it."""

    grammar: str
    warnings: Sequence[Finding] = ()


@dataclass(frozen=True, slots=True)
class Compiled:
    """A matcher at its beginning, and what it took of a processor."""

    matcher: LLMatcher
    compile_seconds: float
    mask_seconds: float
    """For the first mask."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """Compiles for one model's tokens; without a model, for bytes."""

    vocabulary: Vocabulary | None = None
    limits: Limits = field(default=DEFAULT_LIMITS)
    compiled: dict[str, Compiled] | None = None
    """Keeps what was compiled last, if set: by one thread, which will ask for it again."""

    def complaint(self, grammar: str) -> str:
        """What llguidance has against a grammar; empty when a first token can be chosen."""
        compiled = self._compile(grammar)
        if self.compiled is not None:
            self.compiled.clear()
            self.compiled[grammar] = compiled
        matcher = compiled.matcher
        message: str = matcher.get_error() if matcher.is_error() else ""
        return message

    def compile(self, grammar: str) -> Compiled:
        """Nobody else's: it may be used up."""
        found = self.compiled.pop(grammar, None) if self.compiled is not None else None
        return found or self._compile(grammar)

    def _compile(self, grammar: str) -> Compiled:
        tokenizer = vocabulary.load(self.vocabulary)
        began = time.thread_time()
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits())
        compiled = time.thread_time()
        if not matcher.is_error():
            matcher.compute_bitmask()
        return Compiled(matcher, compiled - began, time.thread_time() - compiled)


DEFAULT_COMPILER = Compiler()


def complaint(grammar: str) -> str:
    """The same for bytes alone."""
    return DEFAULT_COMPILER.complaint(grammar)


def accepts_nothing(grammar: str) -> bool:
    """Whether the empty text is in the language."""
    matcher = LLMatcher(vocabulary.load(None), grammar, log_level=0, limits=limits())
    return not matcher.is_error() and bool(matcher.is_accepting())


def brief(message: str) -> str:
    """A complaint in one line, without its place in the generated text."""
    if found := _PATTERN_ERROR.search(message):
        return f"invalid pattern: {found[1]}"
    if found := _LOOK_AROUND.search(message):
        return f"invalid pattern: {_ANCHORS[found[1]]}"
    first = _LOCATION.sub("", message).partition("\n")[0].strip()
    if _TOO_MANY_ITEMS.search(first):
        return TOO_MANY_ALTERNATIVES
    if _TOO_MANY_STATES.search(first):
        return _LEXER
    return _STOP_REASONS.get(first, _INTERNALS.sub("", first))
