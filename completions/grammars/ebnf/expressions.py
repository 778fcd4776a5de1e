"""The expressions of a grammar. They are immutable, and simplified as they are built.

Equal expressions are one object. That makes them cheap keys, and every analysis a loop over
distinct expressions instead of a recursion.
"""

from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from completions.grammars.tokens import IdRanges
from completions.regular.code_points import Ranges


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """Compared by identity: `Expressions` makes each expression once."""


@dataclass(frozen=True, slots=True, eq=False)
class Literal(Expression):
    """A text of at least one character."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Characters(Expression):
    """Any one character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True, eq=False)
class Concatenation(Expression):
    """All parts in order; without parts, the empty text."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Alternation(Expression):
    """One of at least two options."""

    options: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat(Expression):
    """The body `low` to `high` times; None means no upper bound."""

    body: Expression
    low: int
    high: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Reference(Expression):
    """A rule, by name."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Substring(Expression):
    """Any run of consecutive chunks, the empty one included."""

    chunks: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class FreeText(Expression):
    """Any text without the avoided strings. If `end` is one of them, the text ends with it.

    No string contains another.
    """

    avoided: tuple[str, ...]
    end: str


@dataclass(frozen=True, slots=True, eq=False)
class NonEmpty(Expression):
    """The texts of the body, except the empty one."""

    body: Expression


@dataclass(frozen=True, slots=True, eq=False)
class Tokens(Expression):
    """Exactly one of the model's tokens, chosen by id, whatever its text."""

    ids: IdRanges
    """The first and last id of each range, both included."""
    lead_bytes: int
    """The first bytes of the tokens' texts, as a set of 256 bits. Special tokens have no text."""
    is_any_text: bool
    """Whether all tokens that have a text are among them."""


@dataclass(frozen=True, slots=True, eq=False)
class EndingEarly(Expression):
    """The texts of the body, without those that continue a shorter text of the body.

    Only shorter texts of at least `min_tokens` characters count.
    """

    body: Expression
    min_tokens: int


EMPTY = Concatenation(())
Node = TypeVar("Node", bound=Expression)


class Expressions:
    """Factory of the expressions of one grammar."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}

    def _intern(self, kind: type[Node], *fields: object) -> Node:
        node: Node | None = self._made.get((kind, *fields))
        if node is None:
            node = self._made[kind, *fields] = kind(*fields)
        return node

    def make_literal(self, text: str) -> Expression:
        return self._intern(Literal, text) if text else EMPTY

    def make_characters(self, ranges: Ranges) -> Expression:
        if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
            return self.make_literal(chr(ranges[0][0]))
        return self._intern(Characters, ranges)

    def make_reference(self, name: str) -> Expression:
        return self._intern(Reference, name)

    def make_substring(self, chunks: tuple[str, ...]) -> Expression:
        return self._intern(Substring, chunks)

    def make_free_text(self, avoided: tuple[str, ...], end: str = "") -> Expression:
        return self._intern(FreeText, avoided, end)

    def make_tokens(self, ids: IdRanges, lead_bytes: int, is_any_text: bool) -> Expression:
        return self._intern(Tokens, ids, lead_bytes, is_any_text)

    def make_non_empty(self, body: Expression) -> Expression:
        return self._intern(NonEmpty, body)

    def make_ending_early(self, body: Expression, min_tokens: int) -> Expression:
        return self._intern(EndingEarly, body, min_tokens)

    def make_concatenation(self, parts: Iterable[Expression]) -> Expression:
        """Return the concatenation, flattened, with adjacent literals joined."""
        flat: list[Expression] = []
        texts: list[str] = []
        for part in parts:
            for each in part.parts if isinstance(part, Concatenation) else (part,):
                if isinstance(each, Literal):
                    texts.append(each.text)
                    continue
                if texts:
                    flat.append(self.make_literal("".join(texts)))
                    texts = []
                flat.append(each)
        if texts:
            flat.append(self.make_literal("".join(texts)))
        if len(flat) < 2:
            return flat[0] if flat else EMPTY
        return self._intern(Concatenation, tuple(flat))

    def make_alternation(self, options: Iterable[Expression]) -> Expression:
        """Return the alternation of at least one option, flattened and without duplicates."""
        flat: dict[Expression, None] = {}
        for option in options:
            nested = option.options if isinstance(option, Alternation) else (option,)
            flat.update(dict.fromkeys(nested))
        if len(flat) == 1:
            return next(iter(flat))
        return self._intern(Alternation, tuple(flat))

    def make_repeat(self, body: Expression, low: int, high: int | None) -> Expression:
        if high == 0 or body is EMPTY:
            return EMPTY
        if low == high == 1:
            return body
        return self._intern(Repeat, body, low, high)


class Group:
    """The options of a group in parentheses, as far as they have been read."""

    def __init__(self, make: Expressions) -> None:
        self._make = make
        self._options: list[Expression] = []
        self.parts: list[Expression] = []
        """The option being read."""

    def end_option(self) -> None:
        self._options.append(self._make.make_concatenation(self.parts))
        self.parts = []

    def close(self) -> Expression:
        self.end_option()
        return self._make.make_alternation(self._options)


def get_children(node: Expression) -> tuple[Expression, ...]:
    """Return its direct parts. The rule of a reference is not a part."""
    if isinstance(node, Concatenation):
        return node.parts
    if isinstance(node, Alternation):
        return node.options
    if isinstance(node, Repeat | NonEmpty | EndingEarly):
        return (node.body,)
    return ()


def walk(
    roots: Iterable[Expression],
    skipped: Container[Expression] = (),
    parts: Callable[[Expression], tuple[Expression, ...]] = get_children,
) -> Iterator[Expression]:
    """Yield every distinct expression in the roots, once, each after its parts.

    The parts of skipped expressions are skipped too.
    """
    seen: set[Expression] = set()
    stack = [(root, False) for root in roots]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node not in seen and node not in skipped:
            seen.add(node)
            stack.append((node, True))
            stack.extend((part, False) for part in parts(node))
