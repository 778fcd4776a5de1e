"""The nodes of a structural tag: XGrammar's `format` tree, a class for each type of node.

`Mark` and `Constrained`, and the fields `place` and `mixed`, stand only in trees that the service
makes for chat completions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from completions.grammars.constraint import Constraint


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the tree. `pointer` is the JSON pointer to it."""

    pointer: str


@dataclass(frozen=True, slots=True)
class ConstString(Node):
    value: str


@dataclass(frozen=True, slots=True)
class JSONSchema(Node):
    """JSON, or the parameters of a call in a model's own tags, by `style`.

    `pointer` leads to the schema itself.
    """

    json_schema: Mapping[str, Any]
    style: str = "json"
    spaces: int | None = None
    """Most whitespace characters in a row; None for the request's own whitespace."""
    place: str = ""
    """The path of the schema in the request, where errors name that instead of the field."""


@dataclass(frozen=True, slots=True)
class Grammar(Node):
    """EBNF with a rule `root`."""

    grammar: str


@dataclass(frozen=True, slots=True)
class Regex(Node):
    """A pattern whose dot matches newlines too."""

    pattern: str


@dataclass(frozen=True, slots=True)
class AnyText(Node):
    excludes: tuple[str, ...] = ()
    max_chars: int | None = None
    mixed: bool = False
    """Whether special tokens other than marks may stand among the characters."""


@dataclass(frozen=True, slots=True)
class Tokens(Node):
    """Tokens by id or text: one of `tokens`, or if `excluded` one that is none of them.

    `token`, `exclude_token` and `any_tokens` are read as this; `most` None means any number.
    """

    tokens: tuple[int | str, ...]
    excluded: bool = False
    least: int = 1
    most: int | None = 1


@dataclass(frozen=True, slots=True)
class Sequence(Node):
    elements: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or(Node):
    elements: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat(Node):
    """`optional`, `star`, `plus` and `repeat`; `most` None means any number."""

    content: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Tag(Node):
    """`begin`, content, then one of `ends`; where these are strings, they end free text inside."""

    begin: str | Tokens
    content: Node
    ends: tuple[str, ...] | Tokens


@dataclass(frozen=True, slots=True)
class TaggedText(Node):
    """Free text in which a trigger obliges the rest of a tag that begins with it.

    `triggered_tags`, `token_triggered_tags` and the legacy form are read as this. Triggers and
    excludes are strings, or all tokens.
    """

    triggers: tuple[str, ...] | tuple[Tokens, ...]
    tags: tuple[Tag, ...]
    at_least_one: bool
    stop_after_first: bool
    excludes: tuple[str | int, ...]
    mixed: bool = False
    """Whether special tokens other than marks may stand among the characters."""


@dataclass(frozen=True, slots=True)
class Dispatch(Node):
    """Free text in which a pattern obliges the content beside it; `token_dispatch` too."""

    rules: tuple[tuple[str | Tokens, Node], ...]
    loop: bool
    excludes: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class SeparatedTags(Node):
    tags: tuple[Tag, ...]
    separator: str
    at_least_one: bool
    stop_after_first: bool


@dataclass(frozen=True, slots=True)
class Mark(Node):
    """A text that is a lexeme of its own: it does not fuse with its neighbours."""

    text: str
    cuts: bool
    """Whether it ends any free text that could go on over it."""


@dataclass(frozen=True, slots=True)
class Constrained(Node):
    """What the client's own constraint allows."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A structural tag as a whole."""

    root: Node
    marks: tuple[str, ...] | None = None
    """In an answer's tree, the texts that mean special tokens of the model where it has them."""
    constraint: Constraint | None = None
    """What `Constrained` stands for."""
