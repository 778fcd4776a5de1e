"""Compiling a grammar with llguidance for the tokens of a model."""

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

# Locations in llguidance's messages point into generated text, which the client never saw.
_LOCATION = re.compile(r"^(at )?\d+\(\d+\): ")

_PATTERN_ERROR = re.compile(r"regex parse error:.*\nerror: ([^\n]*)", re.DOTALL)
_PATTERN_ADVICE = {
    "look-around, including look-ahead and look-behind, is not supported": (
        "look-ahead and look-behind are not supported; write out what may stand there"
    ),
    "backreferences are not supported": (
        "back-references are not supported; write out the texts that may repeat"
    ),
    "exceed the maximum number of nested parentheses/brackets (250)": (
        "more than 250 nested parentheses and brackets; remove some"
    ),
}
"""What Rust's parser of patterns says, and what a client can act on."""
_LEXER = "too complex; simplify its patterns and repetitions"
TOO_MANY_ALTERNATIVES = (
    "too complex; it allows too many alternatives at once: make it less ambiguous"
)
_LOOK_AROUND = re.compile(r"lookarounds not supported yet; (Start|End|Word)")
_ANCHORS = {
    "Start": "^ is supported at the beginning of a pattern only",
    "End": "$ is supported at the end of a pattern only",
    "Word": r"\b and \B are not supported; write out what may stand there",
}
_INTERNALS = re.compile(r":  \(.*")
"""The pattern that follows a message, in llguidance's internal syntax."""
_STOP_REASONS = {
    "NoExtensionBias": "no text can match this grammar",
    "LexerTooComplex": _LEXER,
    "ParserTooComplex": TOO_MANY_ALTERNATIVES,
}


@dataclass(frozen=True, slots=True)
class Translated:
    """A grammar that llguidance accepts, and the constraint's keywords that have no effect."""

    grammar: str
    warnings: Sequence[Finding] = ()
    loosened: Sequence[str] = ()
    """Places in the request whose schemas are not enforced."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A matcher in its initial state, and the processor time to build it."""

    matcher: LLMatcher
    compile_seconds: float
    mask_seconds: float
    """Processor seconds for the first mask."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """Compiles grammars for one model's tokens; without a model, for bytes."""

    tokens: TokenSource | None = None
    limits: Limits = field(default=DEFAULT_LIMITS)
    compiled: dict[str, Compiled] | None = None
    """If set, keeps the most recent grammar, which the same thread will compile again."""

    def complaint(self, grammar: str) -> str:
        """llguidance's error message for a grammar; empty if a first token can be chosen."""
        compiled = self._compile(grammar)
        if self.compiled is not None:
            self.compiled.clear()
            self.compiled[grammar] = compiled
        matcher = compiled.matcher
        message: str = matcher.get_error() if matcher.is_error() else ""
        return message

    def compile(self, grammar: str) -> Compiled:
        """A matcher that the caller may advance."""
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


def accepts_nothing(grammar: str) -> bool:
    """Whether a grammar matches the empty text."""
    matcher = LLMatcher(tokens.load(None), grammar, log_level=0, limits=JUDGE_LIMITS)
    return not matcher.is_error() and bool(matcher.is_accepting())


def pattern_problem(message: str) -> str:
    """What is wrong with a pattern, from the message of Rust's parser."""
    return _PATTERN_ADVICE.get(message, message)


def brief(message: str) -> str:
    """llguidance's message in one line, without the location in the generated text."""
    if found := _PATTERN_ERROR.search(message):
        return f"invalid pattern: {pattern_problem(found[1])}"
    if found := _LOOK_AROUND.search(message):
        return f"invalid pattern: {_ANCHORS[found[1]]}"
    first = _LOCATION.sub("", message).partition("\n")[0].strip()
    if TOO_MANY_ITEMS.search(first):
        return TOO_MANY_ALTERNATIVES
    if TOO_MANY_STATES.search(first):
        return _LEXER
    return _STOP_REASONS.get(first, _INTERNALS.sub("", first))
