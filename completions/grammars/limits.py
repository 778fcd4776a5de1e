"""How large a constraint may be. Checked before llguidance sees it, in linear time."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from completions.catalog.entries import JSON_WHITESPACES
from completions.grammars.exceptions import GrammarError

Node = TypeVar("Node", str, int)

COMPACT, FLEXIBLE = JSON_WHITESPACES


@dataclass(frozen=True, slots=True)
class Limits:
    """Static caps of a constraint, and what judging it may cost. Each is a setting."""

    max_bytes: int = 256 * 1024
    """UTF-8 bytes; of JSON, written compactly."""
    max_depth: int = 64
    """JSON containers inside each other; four times as many parentheses."""
    max_chain: int = 500
    """Rules that lead into each other, or levels of a JSON Schema along its references."""
    max_enum: int = 20_000
    """Values of one enum."""
    max_properties: int = 1_000
    """Properties of one object: llguidance's time grows with their square."""
    max_repetition: int = 100_000
    """A count in braces, multiplied along repetitions inside each other."""
    max_length: int = 10_000_000
    """minLength, maxItems and the like."""
    max_multiple: int = 100_000
    """multipleOf without trailing zeros: llguidance has a state for each remainder."""
    max_forced: int = 32 * 1024
    """Bytes of text that the beginning of a grammar leaves no choice about."""
    compile_seconds: float = 0.5
    """Of one processor, to compile a grammar: each worker does it again."""
    step_seconds: float = 0.003
    """Of one processor, for each of the first tokens on average."""
    seconds: float = 5.0
    """Of one processor, to judge one constraint."""
    processes: int = 2
    """Child processes that judge what looks costly."""
    cache_bytes: int = 32 * 1024 * 1024
    """Memory of remembered verdicts, in each web process."""

    @property
    def patience(self) -> float:
        """Seconds that a constraint may wait for its turn, and again for its verdict: if it takes
        so much longer than `seconds` of a processor, the machine is too busy."""
        return 4 * self.seconds


DEFAULT_LIMITS = Limits()


def check_bytes(text: str, limits: Limits) -> None:
    if len(text) > limits.max_bytes or len(text.encode()) > limits.max_bytes:
        raise GrammarError(f"longer than {limits.max_bytes} bytes")


def check_depth(value: Any, limits: Limits) -> None:
    """Raises GrammarError for JSON with too many containers inside each other."""
    if depth(value, limits.max_depth) > limits.max_depth:
        raise GrammarError(f"nested deeper than {limits.max_depth} arrays and objects")


def depth(value: Any, enough: int) -> int:
    """Levels of containers, without recursion; no more than one past `enough` is counted."""
    level, levels = [value], 0
    while level := [item for item in level if isinstance(item, dict | list)]:
        levels += 1
        if levels > enough:
            break
        level = [child for item in level for child in children(item)]
    return levels


def children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


_QUOTED = r'"(?:[^"\\\n]|\\.)*"'
_CLASS = r"\[(?:[^\]\\]|\\.)*\]"
_COUNT = r"\{\s*(?P<low>\d+)\s*(?P<comma>,)?\s*(?P<high>\d*)\s*\}"
_REGEX = re.compile(rf"\\.|{_CLASS}|{_COUNT}|[()?*+]|.", re.DOTALL)
_RULES = re.compile(rf"{_QUOTED}|{_CLASS}|{_COUNT}|[()?*+]|[\s#]+|.", re.DOTALL)


@dataclass(slots=True)
class Shape:
    """What makes a pattern or a grammar costly."""

    nesting: int = 0
    repetition: int = 1


def shape(text: str, *, is_regex: bool) -> Shape:
    """Depth of parentheses and product of counts in braces, in one pass."""
    found = Shape()
    groups = [1]  # the largest product inside each open group
    last = 1  # of the element just read
    for piece in pieces(text, is_regex=is_regex):
        character = piece[0]
        if character == "(":
            groups.append(1)
            found.nesting = max(found.nesting, len(groups) - 1)
            last = 1
        elif character == ")" and len(groups) > 1:
            last = groups.pop()
        elif piece["low"] is not None:
            last *= max(_count(piece["low"]), _count(piece["high"]), 1)
        elif character not in "?*+" and not character.isspace():
            last = 1
        groups[-1] = max(groups[-1], last)
        found.repetition = max(found.repetition, last)
    return found


def pieces(text: str, *, is_regex: bool) -> Iterator[re.Match[str]]:
    """A pattern or a grammar cut where nesting and repetition can be seen."""
    return (_REGEX if is_regex else _RULES).finditer(text)


def _count(digits: str) -> int:
    """A count's value; a very long one is just large."""
    return int(digits) if 0 < len(digits) < 12 else 10**12 * bool(digits)


def check_shape(text: str, limits: Limits, *, is_regex: bool) -> None:
    found = shape(text, is_regex=is_regex)
    if found.nesting > 4 * limits.max_depth:
        raise GrammarError(f"nested deeper than {4 * limits.max_depth} parentheses")
    if found.repetition > limits.max_repetition:
        raise GrammarError(f"repetitions multiply to more than {limits.max_repetition}")


_DEFINITION = re.compile(r"^[ \t]*[?!]?([A-Za-z_]\w*)[^:\n\"/]*:", re.MULTILINE)
NOT_LARK_NAMES = re.compile(r'"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)+/|//[^\n]*|#[^\n]*')
_NAME = re.compile(r"[A-Za-z_]\w*")


_EBNF_DEFINITION = re.compile(r"^[ \t]*([^\W\d][\w.-]*|[-.][\w.-]*)\s*::=", re.MULTILINE)
_NOT_EBNF_NAMES = re.compile(rf"{_QUOTED}|{_CLASS}|#[^\n]*")
_EBNF_NAME = re.compile(r"[\w.-]+")


def check_chains(lark: str, limits: Limits) -> None:
    """Raises GrammarError when rules lead into each other too far: llguidance recurses there."""
    _check_chains(NOT_LARK_NAMES.sub(" ", lark), _DEFINITION, _NAME, limits)


def check_ebnf_chains(text: str, limits: Limits) -> None:
    """The same for EBNF, before it is read."""
    _check_chains(_NOT_EBNF_NAMES.sub(" ", text), _EBNF_DEFINITION, _EBNF_NAME, limits)


def _check_chains(
    bare: str, definition: re.Pattern[str], name: re.Pattern[str], limits: Limits
) -> None:
    found = list(definition.finditer(bare))
    ends = [*(match.start() for match in found[1:]), len(bare)][: len(found)]
    used = {
        match[1]: name.findall(bare, match.end(), end)
        for match, end in zip(found, ends, strict=True)
    }
    if longest_chain(used) > limits.max_chain:
        raise GrammarError(f"more than {limits.max_chain} rules lead into each other")


def longest_chain(used: Mapping[Node, Iterable[Node]]) -> int:
    """Nodes on the longest way of a depth-first walk, without recursion.

    A cycle ends where it closes; nodes that are no keys of `used` do not count.
    """
    lengths: dict[Node, int] = {}
    for first in used:
        stack = [] if first in lengths else [(first, iter(used[first]))]
        open_nodes = {first}
        while stack:
            node, rest = stack[-1]
            lengths.setdefault(node, 1)
            following = next(rest, None)
            if following is None:
                stack.pop()
                open_nodes.discard(node)
                if stack:
                    above = stack[-1][0]
                    lengths[above] = max(lengths[above], lengths[node] + 1)
            elif following in open_nodes or following not in used:
                continue
            elif following in lengths:
                lengths[node] = max(lengths[node], lengths[following] + 1)
            else:
                open_nodes.add(following)
                stack.append((following, iter(used[following])))
    return max(lengths.values(), default=0)
