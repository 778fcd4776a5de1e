"""The nodes of a structural tag: XGrammar's `format` tree, one class per type of node."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Format:
    """A node of the tree. `pointer` is the JSON pointer to it."""

    pointer: str


@dataclass(frozen=True, slots=True)
class ConstString(Format):
    value: str


@dataclass(frozen=True, slots=True)
class JSONSchema(Format):
    """JSON, or the parameters of a call in a model's own tags, by `style`.

    `pointer` leads to the schema itself.
    """

    json_schema: Mapping[str, Any]
    style: str = "json"
    spaces: int | None = None
    """Whitespace characters in a row at most; None as everywhere in the request."""


@dataclass(frozen=True, slots=True)
class Grammar(Format):
    """EBNF with a rule `root`."""

    grammar: str


@dataclass(frozen=True, slots=True)
class Regex(Format):
    """A pattern whose dot matches newlines too."""

    pattern: str


@dataclass(frozen=True, slots=True)
class AnyText(Format):
    excludes: tuple[str, ...] = ()
    max_chars: int | None = None


@dataclass(frozen=True, slots=True)
class Tokens(Format):
    """Tokens by id or text: one of `tokens`, or if `excluded` one that is none of them.

    `token`, `exclude_token` and `any_tokens` are read as this; `most` None means any number.
    """

    tokens: tuple[int | str, ...]
    excluded: bool = False
    least: int = 1
    most: int | None = 1


@dataclass(frozen=True, slots=True)
class Sequence(Format):
    elements: tuple[Format, ...]


@dataclass(frozen=True, slots=True)
class Or(Format):
    elements: tuple[Format, ...]


@dataclass(frozen=True, slots=True)
class Repeat(Format):
    """`optional`, `star`, `plus` and `repeat`; `most` None means any number."""

    content: Format
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Tag(Format):
    """`begin`, content, then one of `ends`; where these are strings, they end free text inside."""

    begin: str | Tokens
    content: Format
    ends: tuple[str, ...] | Tokens


@dataclass(frozen=True, slots=True)
class TaggedText(Format):
    """Free text in which a trigger obliges the rest of a tag that begins with it.

    `triggered_tags`, `token_triggered_tags` and the legacy form are read as this. Triggers and
    excludes are strings, or all tokens.
    """

    triggers: tuple[str, ...] | tuple[Tokens, ...]
    tags: tuple[Tag, ...]
    at_least_one: bool
    stop_after_first: bool
    excludes: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Dispatch(Format):
    """Free text in which a pattern obliges the content beside it; `token_dispatch` too."""

    rules: tuple[tuple[str | Tokens, Format], ...]
    loop: bool
    excludes: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class SeparatedTags(Format):
    tags: tuple[Tag, ...]
    separator: str
    at_least_one: bool
    stop_after_first: bool
