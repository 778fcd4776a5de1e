"""The texts in which a pattern is found, as a network that follows them and as an automaton."""

from functools import lru_cache

from completions.grammars.messages import format_value
from completions.grammars.patterns.reader import PatternSyntaxError, read
from completions.regular.dfa import Dfa, determinize
from completions.regular.network import Network, UnreadablePatternError
from completions.regular.nfa import PatternError


@lru_cache(maxsize=256)
def build_network(pattern: str) -> Network:
    """Return the network of a pattern. Raises UnreadablePatternError, which names the pattern and
    what to change in it."""
    try:
        return Network(read(pattern))
    except (PatternSyntaxError, UnreadablePatternError) as error:
        raise UnreadablePatternError(f"{format_value(pattern)}: {error}") from error


def compile_pattern(pattern: str) -> Dfa:
    """Return the texts in which the pattern is found. Raises PatternError."""
    result = _compile_pattern(pattern)
    if isinstance(result, PatternError):
        raise result
    return result


@lru_cache(maxsize=256)
def _compile_pattern(pattern: str) -> Dfa | PatternError:
    """Keep failures too, because they take long to find."""
    try:
        return determinize(build_network(pattern))
    except PatternError as error:
        return error.with_traceback(None)
