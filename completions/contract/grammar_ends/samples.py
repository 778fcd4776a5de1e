"""A short text of a pattern, for strings that may not end anywhere."""

import json
from collections.abc import Iterator

from completions.contract.stop_regex.syntax import RegexError, make_predicate, parse
from completions.regular.syntax import Alternation, Characters, Concatenation, Node, Repeat

_MAX_PATTERN = 4_000
_MAX_CHARACTERS = 32_000
"""Of all patterns that are read."""
_MAX_SAMPLE = 256
_PLAIN = "a0A.- "
"""What stands for a set that has one of them."""


class _TooLongError(Exception):
    """No short text is found."""


def iter_samples(schema: object) -> Iterator[bytes]:
    """Yield a shortest text, as JSON with its last quote, of each of the first patterns for strings
    and names in a JSON Schema, as far as it can be read."""
    left = _MAX_CHARACTERS
    for pattern in dict.fromkeys(_iter_patterns(schema)):
        if len(pattern) > _MAX_PATTERN:
            continue
        left -= len(pattern)
        if left < 0:
            return
        try:
            text = _find_shortest(parse(pattern))
        except (ValueError, RegexError, _TooLongError, RecursionError):
            continue
        yield json.dumps(text, ensure_ascii=False)[1:].encode()


def _iter_patterns(schema: object) -> Iterator[str]:
    waiting = [schema]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            pattern, names = item.get("pattern"), item.get("patternProperties")
            yield from (pattern,) if isinstance(pattern, str) else ()
            yield from names if isinstance(names, dict) else ()
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item


def _find_shortest(node: Node) -> str:
    """Return a text without regard to what stands beside it: anchors hold where they usually are,
    at the ends."""
    match node:
        case Characters():
            text = _choose(node)
        case Concatenation(parts):
            text = "".join(map(_find_shortest, parts))
        case Alternation(options):
            text = min(map(_find_shortest, options), key=len)
        case Repeat(item, low) if low:
            text = _find_shortest(item) * min(low, _MAX_SAMPLE + 1)
        case _:
            return ""
    if len(text) > _MAX_SAMPLE:
        raise _TooLongError
    return text


def _choose(atom: Characters) -> str:
    is_member = make_predicate(atom)
    chars: list[str] = [*_PLAIN, *(chr(low) for low, _ in atom.ranges)]
    for char in chars:
        if is_member(char):
            return char
    raise _TooLongError
