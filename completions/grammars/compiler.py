"""Compiling a grammar with llguidance for the tokens of a model."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from llguidance import LLMatcher

from completions.contract.llguidance_limits import VALIDATION_LIMITS
from completions.grammars import tokens
from completions.grammars.exceptions import Diagnostic
from completions.grammars.limits import DEFAULT_LIMITS, Limits
from completions.grammars.tokens import TokenSource


@dataclass(frozen=True, slots=True)
class Translation:
    """A grammar that llguidance accepts, and the constraint's keywords that have no effect."""

    grammar: str
    warnings: Sequence[Diagnostic] = ()
    relaxed: Sequence[str] = ()
    """Places in the request whose schemas are not enforced."""
    explain: Callable[[str], str] = str
    """Turns the message of a grammar that is too complex into one that names the cause, if it can
    be found."""


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A matcher in its initial state, and the processor time to build it."""

    matcher: LLMatcher
    compile_seconds: float
    mask_seconds: float
    """Processor seconds for the first mask."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """Compiler of grammars for one model's tokens; without a model, for bytes."""

    tokens: TokenSource | None = None
    limits: Limits = field(default=DEFAULT_LIMITS)
    recent: dict[str, CompiledGrammar] | None = None
    """If set, keeps the most recent grammar, which the same thread will compile again."""

    def find_error(self, grammar: str) -> str:
        """Return llguidance's error message for a grammar; empty if a first token can be chosen."""
        compiled = self._compile(grammar)
        if self.recent is not None:
            self.recent.clear()
            self.recent[grammar] = compiled
        matcher = compiled.matcher
        message: str = matcher.get_error() if matcher.is_error() else ""
        return message

    def compile(self, grammar: str) -> CompiledGrammar:
        """Return a matcher that the caller may advance."""
        compiled = self.recent.pop(grammar, None) if self.recent is not None else None
        return compiled or self._compile(grammar)

    def _compile(self, grammar: str) -> CompiledGrammar:
        tokenizer = tokens.load(self.tokens)
        began = time.thread_time()
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=VALIDATION_LIMITS)
        compiled = time.thread_time()
        if not matcher.is_error():
            matcher.compute_bitmask()
        return CompiledGrammar(matcher, compiled - began, time.thread_time() - compiled)


DEFAULT_COMPILER = Compiler()


def is_nullable(grammar: str) -> bool:
    """Return whether a grammar matches the empty text."""
    matcher = LLMatcher(tokens.load(None), grammar, log_level=0, limits=VALIDATION_LIMITS)
    return not matcher.is_error() and bool(matcher.is_accepting())
