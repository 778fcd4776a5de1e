"""Keywords that no draft of JSON Schema has, each either a typing error or an annotation.

A constraint that is misspelt would silently not be enforced, so it is refused. What is named as an
annotation, or resembles nothing, is ignored with a warning.
"""

import re
from collections.abc import Iterable

_PRIVATE = re.compile(r"_|\$|x-")
"""How the names of other vocabularies begin."""
_SHORTEST = 4
"""Letters of a keyword for which one other letter is a typing error."""


def suggest(keyword: str, constraints: Iterable[str]) -> str:
    """Return the constraint that a keyword misspells; empty if it misspells none."""
    if _PRIVATE.match(keyword):
        return ""
    letters = _normalize(keyword)
    for constraint in constraints:
        if letters == _normalize(constraint):
            return constraint
    for constraint in constraints:
        if (
            len(constraint) >= _SHORTEST
            and len(keyword) >= _SHORTEST
            and _is_one_edit(letters, _normalize(constraint))
        ):
            return constraint
    return ""


def _normalize(keyword: str) -> str:
    return re.sub(r"[-_]", "", keyword).lower()


def _is_one_edit(one: str, other: str) -> bool:
    """Return whether one letter more, less or different, or two letters exchanged, makes them
    equal."""
    if abs(len(one) - len(other)) > 1:
        return False
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    left, right = one[same:], other[same:]
    exchanged = left[:2] == right[1::-1] and left[2:] == right[2:] and len(left) > 1
    return left[1:] == right[1:] or left[1:] == right or left == right[1:] or exchanged
