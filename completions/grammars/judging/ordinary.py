"""Which constraints a thread may judge; others need a process that can be stopped."""

import re
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from completions.contract import strict_json
from completions.contract.strict_json import StrictJSONError
from completions.grammars.constraint import Constraint
from completions.grammars.judging.examination import Question
from completions.grammars.limits import children, depth
from completions.grammars.structural_tag import ANSWER

# A constraint above one of these is costly, and judged in a child process.
ORDINARY_BYTES = 16 * 1024
ORDINARY_DEPTH = 24
ORDINARY_COUNT = 500
"""A count in braces, as in `x{500}`."""
ORDINARY_FORCED = 200_000
"""Characters that repetitions may write out. llguidance follows a text that it forces to the end of
that text, and 1 MB takes it some 3 s."""
ORDINARY_OCCURRENCES = {
    "$ref": 50, "(": 200, "multipleOf": 1, '"not': 20, '"oneOf': 20, '"if': 20,
    "(?=": 3, "(?!": 3, "(?<=": 3, "(?<!": 3, "\\b": 6, "\\B": 6,
}  # fmt: skip
"""llguidance multiplies several `multipleOf`, beyond its own limits on time and memory. Schemas are
rewritten in Python, so 150 negations of patterns would slow the event loop for two seconds, and so
would ten look-aheads that need too many states."""
ORDINARY_PAIRS = 2_500
"""Pairs of values of two enums. Where both hold, llguidance compares all of them: 40,000 take it
two seconds."""
ORDINARY_STATES = 50_000
"""A bound on the states of all patterns together. Where several must hold, llguidance may visit
all of them before it refuses: 200,000 take a second, and three million more than ten."""
_COMBINING = ('"$ref', '"allOf', '"anyOf', '"oneOf')
_JOINING = (*_COMBINING, '"if', '"not', '"dependent', '"contains', '"patternProperties')
ORDINARY_PATTERNS_BYTES = 1_000
"""Bytes of a schema with `patternProperties`, all of which llguidance compares with one
another."""
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


def is_ordinary(question: Question, written: str) -> bool:
    """Whether a constraint is small and plain enough for a thread to judge it."""
    if len(written) > ORDINARY_BYTES:
        return False
    kinds = set(_kinds(question.constraint))
    # llguidance computes a mask of `start: /a+/ "a"` forever, and only a process can be stopped.
    if "llguidance" in kinds:
        return False
    if any(written.count(text) > most for text, most in ORDINARY_OCCURRENCES.items()):
        return False
    if "patternProperties" in written and len(written) > ORDINARY_PATTERNS_BYTES:
        return False
    is_pattern = question.constraint.field in ("ebnf", "regex")
    if not is_pattern and any(sign in written for sign in _HIDDEN):
        return False
    if depth(question.constraint.value, ORDINARY_DEPTH) > ORDINARY_DEPTH:
        return False
    if not (_is_repeated_little(kinds, written) and _has_short_minima(written)):
        return False
    value = question.constraint.plain()[1]
    if any(keyword in written for keyword in _COMBINING) and _pairs(value) > ORDINARY_PAIRS:
        return False
    joins = any(keyword in written for keyword in _JOINING)
    return not joins or _states(value) <= ORDINARY_STATES


def _kinds(constraint: Constraint) -> Iterator[str]:
    """The kind of a constraint, and in a chat's answer also that of the client's own."""
    kind, value = constraint.plain()
    yield kind
    if kind == ANSWER and value["constraint"]:
        yield Constraint(*value["constraint"]).plain()[0]


def _is_repeated_little(kinds: set[str], written: str) -> bool:
    """Whether an upper bound on the product of nested counts is small, and so is what they write
    out. llguidance computes the first mask of `(((ab){40,46}){40,46}){40,46}` forever."""
    nests_anywhere = bool(kinds & {"ebnf", "structural_tag"}) or bool(_SPACED.search(written))
    quotes = [found.start() for found in _QUOTE.finditer(written)]
    most, product = 1, 1
    longest = len(written) if nests_anywhere else 1
    """Of the texts that are repeated. What is repeated is in the same string."""
    for found in _BRACES.finditer(written):
        inside = found["inside"]
        if _COMMENT in inside:
            return False
        count = max(map(_capped, _NUMBER.findall(inside)), default=1)
        if nests_anywhere or found["before"]:
            product = min(product * count, ORDINARY_COUNT + 1)
            before = bisect_left(quotes, found.start())
            longest = max(longest, found.start() - (quotes[before - 1] if before else 0))
        else:
            most = max(most, count)
    if "structural_tag" in kinds:
        for digits in _COUNTS_OF_TAGS.findall(written):
            product = min(product * _capped(digits), ORDINARY_COUNT + 1)
    return most * product <= ORDINARY_COUNT and product * longest <= ORDINARY_FORCED


def _has_short_minima(written: str) -> bool:
    """Whether the least items and characters of a schema's texts are few. llguidance takes a minute
    for the first mask of `{"pattern": "^a*$", "minLength": 1000000}`."""
    items = 1
    for number in _MIN_ITEMS.findall(written):
        items = min(items * _capped(number), ORDINARY_FORCED)
    if items > 1 and items * len(written) > ORDINARY_FORCED:
        return False
    if "pattern" not in written and "format" not in written:
        return True
    return all(_capped(number) <= ORDINARY_COUNT for number in _MIN_LENGTH.findall(written))


def _pairs(value: Any) -> int:
    """How many pairs the values of the two largest enums make; a set of `const` is one, too."""
    sizes, constants = [1, 1], 0
    for item in _objects(value):
        constants += "const" in item
        sizes += [len(item["enum"])] if isinstance(item.get("enum"), list) else []
    largest, second = sorted((*sizes, constants), reverse=True)[:2]
    return largest * second


def _states(value: Any) -> int:
    """The product of the sizes of all patterns, up to one more than ORDINARY_STATES."""
    patterns = {item["pattern"] for item in _objects(value) if isinstance(item.get("pattern"), str)}
    product = 1
    for pattern in patterns:
        counts = _NUMBER.findall(" ".join(each["inside"] for each in _BRACES.finditer(pattern)))
        count = max(map(_capped, counts), default=1)
        product = min(product * max(len(pattern), 2) * count, ORDINARY_STATES + 1)
    return product


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in a constraint, also in one that is JSON in a string."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str) and item.lstrip().startswith("{"):
            with suppress(StrictJSONError):
                item = strict_json.loads(item)
        if isinstance(item, dict):
            yield item
        waiting += children(item)


def _capped(digits: str) -> int:
    """The number, but at least 1 and at most one more than an ordinary count. One that is not
    written as plain digits, such as 1e6, counts as too large."""
    whole = digits.removesuffix(".0")
    if not whole.isdecimal():
        return ORDINARY_COUNT + 1
    return min(int(whole.lstrip("0")[:9] or 1), ORDINARY_COUNT + 1)
