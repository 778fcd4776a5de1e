"""Limits on the size of a constraint, checked in linear time before llguidance sees it."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from completions.catalog.entries import JSON_WHITESPACES
from completions.grammars.exceptions import GrammarError

Node = TypeVar("Node", str, int)

COMPACT, FLEXIBLE = JSON_WHITESPACES


@dataclass(frozen=True, slots=True)
class Limits:
    """Static caps of a constraint, and limits on the cost of validating it. Each is a setting."""

    max_bytes: int = 256 * 1024
    """UTF-8 bytes; JSON is measured in its compact form."""
    max_depth: int = 64
    """Levels of JSON containers. Parentheses may nest four times as deep."""
    max_chain: int = 500
    """Rules in a chain of references, or levels of a JSON Schema along its references."""
    max_enum: int = 20_000
    """Values of one enum."""
    max_properties: int = 1_000
    """Properties of one object. llguidance's time grows with their square."""
    max_repetition: int = 100_000
    """A count in braces; counts of nested repetitions multiply."""
    max_length: int = 10_000_000
    """Lengths such as minLength and maxItems."""
    max_multiple: int = 100_000
    """multipleOf without trailing zeros. llguidance has a state for each remainder."""
    max_forced: int = 32 * 1024
    """Bytes of text that a grammar forces at its beginning."""
    step_work: int = 550_000
    """llguidance's own count of its work per token, averaged over the first tokens: about 3 ms of a
    2.5 GHz core. `validation/cost.py` weighs it."""
    compile_seconds: float = 2.0
    """Processor seconds to compile a grammar; each worker compiles it again."""
    step_seconds: float = 0.05
    """Processor seconds for each of the first tokens, on average: a last defence, generous enough
    that no loaded machine refuses what another accepts."""
    seconds: float = 5.0
    """Processor seconds to validate one constraint."""
    processes: int = 2
    """Child processes that validate costly constraints."""
    cache_bytes: int = 32 * 1024 * 1024
    """Memory for cached results in each web process."""

    @property
    def patience(self) -> float:
        """Wall-clock seconds that a constraint may wait for its turn, and again for its result."""
        return 4 * self.seconds


DEFAULT_LIMITS = Limits()


def check_bytes(text: str, limits: Limits) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        message = r"a \u escape is half of a surrogate pair; write both halves"
        raise GrammarError(message) from error
    if size > limits.max_bytes:
        raise make_length_error(size, limits)


def make_length_error(size: int, limits: Limits) -> GrammarError:
    max_bytes = limits.max_bytes
    return GrammarError(f"longer than {max_bytes} bytes: it has {size}; send a shorter one")


def make_depth_error() -> GrammarError:
    """Return the refusal of JSON whose depth ended a recursion."""
    return GrammarError("nested too deeply to be read; flatten it")


def check_depth(value: object, limits: Limits) -> None:
    """Raise GrammarError for JSON that is nested too deeply."""
    if measure_depth(value, limits.max_depth) > limits.max_depth:
        raise GrammarError(f"nested deeper than {limits.max_depth} arrays and objects; flatten it")


def measure_depth(value: object, enough: int) -> int:
    """Return the nesting depth of containers, counted without recursion, and only up to `enough` +
    1."""
    level, levels = [value], 0
    while level := [item for item in level if isinstance(item, dict | list)]:
        levels += 1
        if levels > enough:
            break
        level = [child for item in level for child in get_children(item)]
    return levels


def get_children(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def iter_values(value: object) -> Iterator[object]:
    """Yield a JSON value and all values inside it."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        yield item
        waiting += get_children(item)


_MAX_COUNTED = 10**12
"""Cap for repetition counts and their products. Without one, a few kilobytes of pattern make
integers too large to multiply quickly or to print."""
# Repetitions are possessive, and a piece may be unclosed: otherwise the search for its end would
# run through the whole text again from each of many characters.
_REGEX = re.compile(
    r"\\[xuUpP]\{[^}\n]{0,100}\}|\\."
    r"|\[(?:[^\]\\]|\\.)*+\]?+"
    r"|\{\s*+(?P<low>\d++)\s*+,?+\s*+(?P<high>\d*+)\s*+\}"
    r"|.",
    re.DOTALL,
)
_LARK_TEXT = (
    r"(?:\#|//)[^\n]*+"
    r"|<[^<>\s]++>"
    r'|"(?:[^"\\\n]|\\[^\n])*+"?+'
    r"|/(?P<pattern>(?:[^/\\]|\\[^\n])++)/?+"
)
"""Comments, special tokens, strings and patterns, which may span lines, as llguidance reads them.
It refuses a text with one that is not closed."""
_LARK = re.compile(
    rf"{_LARK_TEXT}"
    r"|[{~][ \t]*+\+?+(?P<low>[0-9]*+)[ \t]*+(?:,|\.\.)?+[ \t]*+\+?+(?P<high>[0-9]*+)[ \t]*+\}?+"
    r"|\s++|.",
    re.DOTALL,
)


@dataclass(slots=True)
class Shape:
    """The measures of a pattern or a grammar that make it costly."""

    nesting: int = 0
    repetition: int = 1


def measure_shape(text: str, *, is_regex: bool) -> Shape:
    """Return the depth of parentheses and the product of counts, at most _MAX_COUNTED, found in one
    pass over a pattern, or over a grammar in Lark and once more over its patterns."""
    opening, closing = (("(",), (")",)) if is_regex else (("(", "["), (")", "]"))
    result = Shape()
    groups = [1]  # the largest product inside each open group
    last = 1  # the product of the element just read
    for piece in (_REGEX if is_regex else _LARK).finditer(text):
        character = piece[0]
        if character in opening:
            groups.append(1)
            result.nesting = max(result.nesting, len(groups) - 1)
            last = 1
        elif character in closing and len(groups) > 1:
            last = groups.pop()
        elif piece["low"] is not None:
            count = max(_parse_count(piece["low"]), _parse_count(piece["high"]), 1)
            last = min(last * count, _MAX_COUNTED)
        elif not is_regex and piece["pattern"]:
            inner = measure_shape(piece["pattern"], is_regex=True)
            result.nesting = max(result.nesting, len(groups) - 1 + inner.nesting)
            last = inner.repetition
        elif character not in "?*+" and not character.isspace():
            last = 1
        groups[-1] = max(groups[-1], last)
        result.repetition = max(result.repetition, last)
    return result


def iter_pieces(pattern: str) -> Iterator[re.Match[str]]:
    """Return a pattern cut into tokens that show nesting and repetition."""
    return _REGEX.finditer(pattern)


def _parse_count(digits: str) -> int:
    """Return the value of a count; one of 12 digits or more is _MAX_COUNTED."""
    return int(digits) if 0 < len(digits) < 12 else _MAX_COUNTED * bool(digits)


def check_shape(text: str, limits: Limits, *, is_regex: bool) -> None:
    result = measure_shape(text, is_regex=is_regex)
    if result.nesting > 4 * limits.max_depth:
        raise GrammarError(f"nested deeper than {4 * limits.max_depth} parentheses; remove some")
    if result.repetition > limits.max_repetition:
        product = f": {result.repetition}" if result.repetition < _MAX_COUNTED else ""
        raise GrammarError(
            f"repetitions multiply to more than {limits.max_repetition}{product}; "
            "lower their counts"
        )


class _Syntax(NamedTuple):
    """How to find the definitions and uses of rules in one kind of grammar."""

    definition: re.Pattern[str]
    name: re.Pattern[str]
    without_names: re.Pattern[str]
    """Literals, patterns and comments."""


NOT_LARK_NAMES = re.compile(_LARK_TEXT)
LARK = _Syntax(
    re.compile(r"^[ \t]*[?!]?([A-Za-z_]\w*+)[^:\n\"/]*+:", re.MULTILINE),
    re.compile(r"[A-Za-z_]\w*"),
    NOT_LARK_NAMES,
)
EBNF = _Syntax(
    re.compile(r"^[ \t]*([^\W\d][\w.-]*|[-.][\w.-]*)\s*::=", re.MULTILINE),
    re.compile(r"[\w.-]+"),
    re.compile(r'"(?:[^"\\\r\n]|\\[^\r\n])*+"?+|\[(?:[^\]\\\r\n]|\\[^\r\n])*+\]?+|#[^\r\n]*+'),
)


def check_chains(text: str, limits: Limits, syntax: _Syntax = LARK) -> None:
    """Raise GrammarError for a chain of rules that is too long: llguidance recurses along it."""
    definition, name, without_names = syntax
    bare = without_names.sub(" ", text)
    definitions = list(definition.finditer(bare))
    ends = [*(match.start() for match in definitions[1:]), len(bare)][: len(definitions)]
    used = {
        match[1]: name.findall(bare, match.end(), end)
        for match, end in zip(definitions, ends, strict=True)
    }
    if find_longest_chain(used) > limits.max_chain:
        raise GrammarError(
            f"a chain of more than {limits.max_chain} rules that refer to each other; "
            "write some of them where they are used"
        )


def find_longest_chain(used: Mapping[Node, Iterable[Node]]) -> int:
    """Return the number of nodes on the longest path of a depth-first walk, found without
    recursion.

    A cycle ends where it closes. Nodes that are not keys of `used` do not count.
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
