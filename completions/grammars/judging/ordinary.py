"""Which constraints a thread may judge; others need a process that can be stopped."""

import re

from completions.grammars.judging.examination import Question
from completions.grammars.limits import depth

# A constraint above one of these is costly, and judged in a child process.
ORDINARY_BYTES = 16 * 1024
ORDINARY_DEPTH = 24
ORDINARY_COUNT = 500
"""A count in braces, as in `x{500}`."""
ORDINARY_OCCURRENCES = {"$ref": 50, "(": 200, "multipleOf": 1}
"""llguidance multiplies several `multipleOf`, beyond its own limits on time and memory."""
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
_SPACED = re.compile(r"\(\?[a-zA-Z-]*x")
"""The flag with which white space may stand between a group and its count."""


def is_ordinary(question: Question, written: str) -> bool:
    """Whether a constraint is small and plain enough for a thread to judge it."""
    if len(written) > ORDINARY_BYTES:
        return False
    # llguidance computes a mask of `start: /a+/ "a"` forever, and only a process can be stopped.
    if question.constraint.plain()[0] == "llguidance":
        return False
    if any(written.count(text) > most for text, most in ORDINARY_OCCURRENCES.items()):
        return False
    if "patternProperties" in written and len(written) > ORDINARY_PATTERNS_BYTES:
        return False
    is_pattern = question.constraint.field in ("ebnf", "regex")
    if not is_pattern and any(sign in written for sign in _HIDDEN):
        return False
    nesting = depth(question.constraint.value, ORDINARY_DEPTH)
    return _most_repeated(question, written) <= ORDINARY_COUNT and nesting <= ORDINARY_DEPTH


def _most_repeated(question: Question, written: str) -> int:
    """An upper bound on the product of nested counts. llguidance computes the first mask of
    `(((ab){40,46}){40,46}){40,46}` forever."""
    kind = question.constraint.plain()[0]
    nests_anywhere = kind in ("ebnf", "structural_tag") or _SPACED.search(written) is not None
    most, product = 1, 1
    for found in _BRACES.finditer(written):
        inside = found["inside"]
        if _COMMENT in inside:
            return ORDINARY_COUNT + 1
        count = max(map(_capped, _NUMBER.findall(inside)), default=1)
        if nests_anywhere or found["before"]:
            product = min(product * count, ORDINARY_COUNT + 1)
        else:
            most = max(most, count)
    if kind == "structural_tag":
        for digits in _COUNTS_OF_TAGS.findall(written):
            product = min(product * _capped(digits), ORDINARY_COUNT + 1)
    return most * product


def _capped(digits: str) -> int:
    """The number, but at least 1 and at most one more than an ordinary count."""
    return min(int(digits.lstrip("0")[:9] or 1), ORDINARY_COUNT + 1)
