"""llguidance asked whether it can follow a grammar with a model's tokens."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from llguidance import LLMatcher

from completions.contract.llguidance_limits import JUDGE_LIMITS, TOO_MANY_ITEMS, TOO_MANY_STATES
from completions.grammars import tokens
from completions.grammars.exceptions import Finding
from completions.grammars.limits import DEFAULT_LIMITS, Limits
from completions.grammars.tokens import TokenSource

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

    tokens: TokenSource | None = None
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
        tokenizer = tokens.load(self.tokens)
        began = time.thread_time()
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=JUDGE_LIMITS)
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
    matcher = LLMatcher(tokens.load(None), grammar, log_level=0, limits=JUDGE_LIMITS)
    return not matcher.is_error() and bool(matcher.is_accepting())


def brief(message: str) -> str:
    """A complaint in one line, without its place in the generated text."""
    if found := _PATTERN_ERROR.search(message):
        return f"invalid pattern: {found[1]}"
    if found := _LOOK_AROUND.search(message):
        return f"invalid pattern: {_ANCHORS[found[1]]}"
    first = _LOCATION.sub("", message).partition("\n")[0].strip()
    if TOO_MANY_ITEMS.search(first):
        return TOO_MANY_ALTERNATIVES
    if TOO_MANY_STATES.search(first):
        return _LEXER
    return _STOP_REASONS.get(first, _INTERNALS.sub("", first))
