"""Patterns in the form that llguidance enforces exactly: in Rust's syntax, without look-around.

A look-ahead at the beginning becomes a pattern of its own, which must hold too. Any other
condition is resolved by an automaton of what stands after it, or else of the whole pattern.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import takewhile

from completions.grammars.json_schema.rewriting.schema_algebra import restrict_texts
from completions.grammars.patterns import rust
from completions.grammars.patterns.reader import read
from completions.grammars.patterns.rust import ANY_ESCAPE, Escapes
from completions.grammars.schema.keywords import SchemaObject
from completions.grammars.schema.pointers import escape
from completions.regular.dfa import determinize
from completions.regular.elimination import make_regex
from completions.regular.network import Network
from completions.regular.nfa import PatternError, TooLargeError
from completions.regular.syntax import (
    Alternation,
    Concatenation,
    Edge,
    Look,
    Node,
    make_alternation,
    make_concatenation,
    walk,
)
from completions.regular.writer import HasConditionError

_TOO_LARGE = (
    "its look-ahead, look-behind or \\b, or an anchor within it, needs too many states; give "
    "smaller counts, or write out what may stand there"
)


class NotLoweredError(Exception):
    """A pattern of a schema that llguidance cannot enforce exactly."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(reason)
        self.place = path
        """Where it stands in its schema, as a part of a pointer."""


@lru_cache(maxsize=512)
def lower(pattern: str, escapes: Escapes = ANY_ESCAPE) -> tuple[str, ...]:
    """Return patterns that together match the texts in which the pattern is found.

    Raises PatternSyntaxError, and PatternError for look-around that is too complex.
    """
    node = read(pattern)
    try:
        return (rust.write(node, escapes),)
    except HasConditionError:
        pass
    with_parts = tuple(_iter_parts(node, escapes))
    if all(with_parts):
        return with_parts
    whole, error = _lower_whole(node, escapes)
    if not whole:
        raise error or PatternError(_TOO_LARGE)
    return (whole,)


@lru_cache(maxsize=512)
def lower_name(pattern: str, escapes: Escapes) -> str:
    """Return one pattern, as `patternProperties` need it. Raises as `lower` does."""
    node = read(pattern)
    try:
        return rust.write(node, escapes)
    except HasConditionError:
        pass
    whole, error = _lower_whole(node, escapes)
    pattern_text = whole or _resolve_looks(node, escapes)
    if not pattern_text:
        raise error or PatternError(_TOO_LARGE)
    return pattern_text


def is_incomplete(pattern: str) -> bool:
    """Return whether some control character may be missing in the names that a pattern gives."""
    node = read(pattern)
    if any(isinstance(each, Look) for each in walk(node)):
        return True
    return rust.find_left_out(node) is not None


def apply(schema: SchemaObject, escapes: Escapes) -> dict[str, str]:
    """Lower all patterns of one schema, in place. Returns the patterns of `patternProperties` that
    changed: the old by the new. Raises NotLoweredError."""
    if isinstance(schema.get("pattern"), str):
        with _name_errors("pattern"):
            schema["pattern"], *others = lower(schema["pattern"], escapes)
        texts = [restrict_texts(schema, each) for each in others]
        if texts:
            schema["allOf"] = [*schema.get("allOf", ()), *texts]
    if not (names := schema.get("patternProperties")):
        return {}
    lowered: dict[str, str] = {}
    for name in names:
        with _name_errors(f"patternProperties/{escape(name)}"):
            new = lower_name(name, escapes)
            if new in lowered:
                raise PatternError("another pattern matches the same names; write one of them")
        lowered[new] = name
    schema["patternProperties"] = {new: names[old] for new, old in lowered.items()}
    return {new: old for new, old in lowered.items() if new != old}


@contextmanager
def _name_errors(path: str) -> Iterator[None]:
    try:
        yield
    except PatternError as error:
        raise NotLoweredError(path, str(error)) from error


@lru_cache(maxsize=512)
def _lower_whole(node: Node, escapes: Escapes) -> tuple[str, PatternError | None]:
    """Return the pattern that an automaton of the node writes; empty if that is impossible, and
    why."""
    try:
        texts = make_regex(determinize(Network(node)))
        whole = make_concatenation((Edge.BEGINNING, texts, Edge.END))
        return rust.write(whole, escapes), None
    except TooLargeError:
        return "", None
    except PatternError as error:
        return "", error


def _iter_parts(node: Node, escapes: Escapes) -> Iterator[str]:
    """Yield a pattern for each look-ahead at the beginning, and one for the rest; empty if there is
    no such pattern."""
    items = node.parts if isinstance(node, Concatenation) else (node,)
    leading = list(takewhile(_is_leading, items))
    if items[:1] != (Edge.BEGINNING,) or len(leading) == 1:
        yield _resolve_looks(node, escapes)
        return
    rest = items[len(leading) :]
    yield _resolve_looks(make_concatenation((Edge.BEGINNING, *rest)), escapes)
    for look in leading:
        if isinstance(look, Look):
            yield _lower_look(look, escapes)


def _is_leading(item: Node) -> bool:
    return item is Edge.BEGINNING or (isinstance(item, Look) and item.ahead)


def _lower_look(look: Look, escapes: Escapes) -> str:
    node = make_concatenation((Edge.BEGINNING, look.item))
    if not look.negated:
        return _resolve_looks(node, escapes)
    return _lower_whole(make_concatenation((Edge.BEGINNING, look)), escapes)[0]


def _resolve_looks(node: Node, escapes: Escapes) -> str:
    """Return the pattern with each condition, and what stands after it, as an automaton writes
    them."""
    with suppress(HasConditionError):
        return rust.write(node, escapes)
    with suppress(HasConditionError, PatternError):
        return rust.write(_take_tail([node]), escapes)
    return _lower_whole(node, escapes)[0]


def _take_tail(items: Sequence[Node]) -> Node:
    """Return the same items without look-ahead. Raises PatternError."""
    for index, item in enumerate(items):
        following = items[index + 1 :]
        if isinstance(item, Concatenation):
            return make_concatenation((*items[:index], _take_tail([*item.parts, *following])))
        if not any(isinstance(each, Look) for each in walk(item)):
            continue
        before = items[:index]
        if isinstance(item, Alternation):
            options = (_take_tail([option, *following]) for option in item.options)
            return make_concatenation((*before, make_alternation(options)))
        return make_concatenation((*before, _anchor([item, *following])))
    return make_concatenation(items)


def _anchor(items: Sequence[Node]) -> Node:
    """Return what matches where a text's rest begins, by an automaton. The characters before are
    unknown, so that nothing may look at them."""
    for item in items:
        for each in walk(item):
            if each is Edge.BEGINNING or (isinstance(each, Look) and not each.ahead):
                raise PatternError
    machine = determinize(Network(make_concatenation((Edge.BEGINNING, *items))))
    return make_concatenation((make_regex(machine), Edge.END))
