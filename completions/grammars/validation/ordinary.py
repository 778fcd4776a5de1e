"""Which constraints a thread may validate; others need a process that can be stopped."""

import re
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from completions.contract import strict_json
from completions.contract.strict_json import StrictJSONError
from completions.grammars.constraint import Constraint
from completions.grammars.limits import get_children, measure_depth
from completions.grammars.structural_tag import ANSWER
from completions.grammars.validation.examination import ValidationRequest

# A constraint above one of these is costly, and validated in a child process.
MAX_BYTES = 16 * 1024
MAX_DEPTH = 24
MAX_COUNT = 500
"""A count in braces, as in `x{500}`."""
MAX_FORCED = 200_000
"""Characters that repetitions may write out. llguidance follows a forced text to its end, which
takes some 3 s for 1 MB."""
MAX_OCCURRENCES = {
    "$ref": 50,
    "(": 200,
    "multipleOf": 1,
    '"not': 20,
    '"oneOf': 20,
    '"if': 20,
    "(?=": 3,
    "(?!": 3,
    "(?<=": 3,
    "(?<!": 3,
    "\\b": 6,
    "\\B": 6,
}
"""llguidance multiplies several `multipleOf`, beyond its own limits on time and memory. Schemas are
rewritten in Python, so 150 negations of patterns would slow the event loop for two seconds, and so
would ten look-aheads that need too many states."""
MAX_PAIRS = 2_500
"""Pairs of values of two enums. Where both hold, llguidance compares all of them: 40,000 take it
two seconds."""
MAX_STATES = 50_000
"""A bound on the states of all patterns together. Where several must hold, llguidance may visit
all of them before it refuses: 200,000 take a second, and three million more than ten."""
_COMBINING = ('"$ref', '"allOf', '"anyOf', '"oneOf')
_JOINING = (*_COMBINING, '"if', '"not', '"dependent', '"contains', '"patternProperties')
MAX_PATTERNS_BYTES = 1_000
"""Bytes of a schema with `patternProperties`, all of which llguidance compares with one
another."""
_CUSTOM_INPUT = "custom_input"
"""The type of the node that holds the grammar of a custom tool's input."""
_HIDDEN = ("%json", "\\\\u")
"""Signs of a schema inside a text, which the static caps miss, or of escapes that hide counts."""
_SPACE = r"(?:\s|\\+[nrtf])*+"
"""White space, as it stands or as an escape in JSON."""
_BRACES = re.compile(rf'(?P<before>[)}}?*+])?+\{{(?!{_SPACE}\\*")(?P<inside>[^{{}}]*+)')
"""What may be a count in a pattern, up to the next brace, and what it repeats if that is a group or
another repetition. Not the brace of a JSON object."""
_NUMBER = re.compile(r"\d+")
_COMMENT = "#"
"""In EBNF and in patterns with the flag `x`, a count may hold a comment."""
_COUNTS_OF_TAGS = re.compile(rf'\\*"(?:min|max)\\*"{_SPACE}:{_SPACE}(\d+)')
"""In structural tags, which may be text that holds JSON."""
_MIN_ITEMS, _MIN_LENGTH = (
    re.compile(rf'\\*"{name}\\*"{_SPACE}:{_SPACE}([^\s,}}\\]*)')
    for name in ("minItems", "minLength")
)
_QUOTE = re.compile(r'(?<!\\)"')
"""Where a string of the JSON begins or ends."""
_SPACED = re.compile(r"\(\?[a-zA-Z-]*x")
"""The flag with which white space may stand between a group and its count."""


def is_ordinary(request: ValidationRequest, source: str) -> bool:
    """Return whether a constraint is small and plain enough for a thread to validate it."""
    if len(source) > MAX_BYTES:
        return False
    kinds = set(_iter_kinds(request.constraint))
    # llguidance computes a mask of `start: /a+/ "a"` forever, and only a process can be stopped.
    if "llguidance" in kinds or (ANSWER in kinds and _CUSTOM_INPUT in source):
        return False
    if any(source.count(text) > maximum for text, maximum in MAX_OCCURRENCES.items()):
        return False
    if "patternProperties" in source and len(source) > MAX_PATTERNS_BYTES:
        return False
    is_pattern = request.constraint.field in ("ebnf", "regex")
    if not is_pattern and any(sign in source for sign in _HIDDEN):
        return False
    if measure_depth(request.constraint.value, MAX_DEPTH) > MAX_DEPTH:
        return False
    if not (_has_few_repetitions(kinds, source) and _has_short_minima(source)):
        return False
    value = request.constraint.as_plain()[1]
    if any(keyword in source for keyword in _COMBINING) and _count_pairs(value) > MAX_PAIRS:
        return False
    joins = any(keyword in source for keyword in _JOINING)
    return not joins or _count_states(value) <= MAX_STATES


def _iter_kinds(constraint: Constraint) -> Iterator[str]:
    """Yield the kind of a constraint, and in a chat's answer also that of the client's own."""
    kind, value = constraint.as_plain()
    yield kind
    if kind == ANSWER and value["constraint"]:
        yield Constraint(*value["constraint"]).as_plain()[0]


def _has_few_repetitions(kinds: set[str], source: str) -> bool:
    """Return whether an upper bound on the product of nested counts is small, and so is what they
    write out. llguidance computes the first mask of `(((ab){40,46}){40,46}){40,46}` forever."""
    nests_anywhere = bool(kinds & {"ebnf", "structural_tag"}) or bool(_SPACED.search(source))
    quotes = [match.start() for match in _QUOTE.finditer(source)]
    maximum, product = 1, 1
    longest = len(source) if nests_anywhere else 1
    """Of the texts that are repeated. What is repeated is in the same string."""
    for match in _BRACES.finditer(source):
        inside = match["inside"]
        if _COMMENT in inside:
            return False
        count = max(map(_parse_capped, _NUMBER.findall(inside)), default=1)
        if nests_anywhere or match["before"]:
            product = min(product * count, MAX_COUNT + 1)
            before = bisect_left(quotes, match.start())
            longest = max(longest, match.start() - (quotes[before - 1] if before else 0))
        else:
            maximum = max(maximum, count)
    if "structural_tag" in kinds:
        for digits in _COUNTS_OF_TAGS.findall(source):
            product = min(product * _parse_capped(digits), MAX_COUNT + 1)
    return maximum * product <= MAX_COUNT and product * longest <= MAX_FORCED


def _has_short_minima(source: str) -> bool:
    """Return whether the least items and characters of a schema's texts are few. llguidance takes a
    minute for the first mask of `{"pattern": "^a*$", "minLength": 1000000}`."""
    items = 1
    for number in _MIN_ITEMS.findall(source):
        items = min(items * _parse_capped(number), MAX_FORCED)
    if items > 1 and items * len(source) > MAX_FORCED:
        return False
    if "pattern" not in source and "format" not in source:
        return True
    return all(_parse_capped(number) <= MAX_COUNT for number in _MIN_LENGTH.findall(source))


def _count_pairs(value: object) -> int:
    """Return how many pairs the values of the two largest enums make; a set of `const` is one,
    too."""
    sizes, constants = [1, 1], 0
    for item in _iter_objects(value):
        constants += "const" in item
        sizes += [len(item["enum"])] if isinstance(item.get("enum"), list) else []
    largest, second = sorted((*sizes, constants), reverse=True)[:2]
    return largest * second


def _count_states(value: object) -> int:
    """Return the product of the sizes of all patterns, up to one more than MAX_STATES."""
    patterns = {
        item["pattern"] for item in _iter_objects(value) if isinstance(item.get("pattern"), str)
    }
    product = 1
    for pattern in patterns:
        counts = _NUMBER.findall(" ".join(each["inside"] for each in _BRACES.finditer(pattern)))
        count = max(map(_parse_capped, counts), default=1)
        product = min(product * max(len(pattern), 2) * count, MAX_STATES + 1)
    return product


def _iter_objects(value: object) -> Iterator[dict[str, Any]]:
    """Yield all objects in a constraint, also in one that is JSON in a string."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str) and item.lstrip().startswith("{"):
            with suppress(StrictJSONError):
                item = strict_json.loads(item)
        if isinstance(item, dict):
            yield item
        waiting += get_children(item)


def _parse_capped(digits: str) -> int:
    """Return the number, but at least 1 and at most one more than an ordinary count. One that is
    not written as plain digits, such as 1e6, counts as too large."""
    whole = digits.removesuffix(".0")
    if not whole.isdecimal():
        return MAX_COUNT + 1
    return min(int(whole.lstrip("0")[:9] or 1), MAX_COUNT + 1)
