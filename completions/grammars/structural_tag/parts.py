"""The parts of a structural tag. Regular neighbours fuse into one lexeme.

llguidance cuts the output into lexemes and never backs up to an earlier end of one. Nothing inside
one lexeme can be cut wrongly; `writer` makes the ends of lexemes safe.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from completions.grammars.exceptions import GrammarError
from completions.grammars.tokens import IdRanges
from completions.regular.writer import write_repetition

ANY = "/(?s:.)/"
"""Sentinel: the part can begin with any character."""
SOME = "/(?s:.+)/"
NONE = ""
"""Sentinel: the part is a token by id and has no first character."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """A regular language, as llguidance's Lark writes it inside a terminal."""

    rest: str
    """The expression after `lead`, the literal that every text begins with."""
    nullable: bool = False
    lead: str = ""
    beginnings: str = ANY
    """A terminal of one character that includes every first character of `rest`."""
    is_open: bool = False
    """Whether it holds more than literals, so that its end may be ambiguous."""
    ends_literally: bool = False
    """Whether all of its texts end with a literal."""
    stops: tuple[str, ...] = ()
    """Texts that cannot occur in its open end, so any of them marks where it ends."""
    pointer: str = ""
    """The JSON pointer to the last open node in it."""

    @property
    def expression(self) -> str:
        return f"{quote(self.lead)} {self.rest}".rstrip() if self.lead else self.rest

    @property
    def first(self) -> str:
        return quote(self.lead[0]) if self.lead else self.beginnings

    @property
    def weight(self) -> int:
        return len(self.lead) + len(self.rest)


@dataclass(frozen=True, slots=True)
class Opaque:
    """A part that is not regular: a grammar inside the grammar. Not nullable."""

    expression: str
    first: str
    weight = 1


@dataclass(frozen=True, slots=True)
class OneToken:
    """One of the model's tokens, chosen by id."""

    ids: IdRanges
    pointer: str = ""
    first = NONE
    weight = 1


@dataclass(frozen=True, slots=True)
class Embedded:
    """A grammar in EBNF or Lark and the literal after it, which makes lexemes of its own."""

    text: str
    pointer: str = ""
    after: str = ""
    rule: str = ""
    """The rule that it begins with, if not the root."""
    is_lark: bool = False
    first = ANY
    weight = 1


@dataclass(frozen=True, slots=True)
class Delimiter:
    """A literal that is a lexeme of its own."""

    text: str
    cuts: bool
    """Whether it ends free text that could otherwise continue past it."""
    weight = 1

    @property
    def first(self) -> str:
        return quote(self.text[0])


@dataclass(frozen=True, slots=True)
class _Composed:
    items: "tuple[Part, ...]"
    weight: int = field(init=False)

    def __post_init__(self) -> None:
        weight = 1 + sum(part.weight for part in self.items)
        if weight > MAX_WEIGHT:
            raise GrammarError(
                "too complex: it has too many alternatives after free text; give fewer triggers"
            )
        object.__setattr__(self, "weight", weight)


class Chain(_Composed):
    """All items in order; without items, the empty text."""


class Alternatives(_Composed):
    """One of the items."""


@dataclass(frozen=True, slots=True)
class Loop:
    """The item `least` to `most` times; `most` None means no upper bound."""

    item: "Part"
    min_count: int
    max_count: int | None

    @property
    def weight(self) -> int:
        return self.item.weight + 1


Part = Terminal | Opaque | OneToken | Embedded | Delimiter | Chain | Alternatives | Loop
MAX_WEIGHT = 200_000
"""The most weight of a part: about its number of characters. Each alternative copies the free text
before it."""

EMPTY = Chain(())


def make_literal(text: str) -> Part:
    return Terminal("", lead=text, ends_literally=True) if text else EMPTY


def quote(text: str) -> str:
    """Return a Lark literal. Lark holds no bare DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def is_nullable(part: Part) -> bool:
    match part:
        case Terminal():
            return part.nullable
        case Opaque() | OneToken() | Embedded() | Delimiter():
            return False
        case Chain(items):
            return all(map(is_nullable, items))
        case Alternatives(options):
            return any(map(is_nullable, options))
        case Loop(item, least, _):
            return least == 0 or is_nullable(item)


def get_first(part: Part) -> str:
    """Return a terminal of one character that includes all first characters, or NONE."""
    match part:
        case Terminal() | Opaque() | OneToken() | Embedded() | Delimiter():
            return part.first
        case Chain(items):
            texts = []
            for item in items:
                texts.append(get_first(item))
                if not is_nullable(item):
                    break
            return alternate(texts)
        case Alternatives(options):
            return alternate(map(get_first, options))
        case Loop(item):
            return get_first(item)


def alternate(terminals: Iterable[str]) -> str:
    distinct = sorted(set(terminals) - {NONE})
    if not distinct or ANY in distinct:
        return ANY if distinct else NONE
    return distinct[0] if len(distinct) == 1 else f"({' | '.join(distinct)})"


def make_chain(parts: Sequence[Part]) -> Part:
    """Return all parts in order. Regular neighbours fuse."""
    items: list[Part] = []
    flat = [item for part in parts for item in (part.items if isinstance(part, Chain) else (part,))]
    for index, part in enumerate(flat):
        if items and _is_waiting(items[-1]) and isinstance(part, Alternatives | Loop):
            options = [make_chain([items[-1], option]) for option in _get_options(part)]
            waiting = [option for option in options if _is_waiting(option)]
            settled = [option for option in options if not _is_waiting(option)]
            rest = flat[index + 1 :]
            # Waiting options fuse with what follows; the others share one copy of it.
            ways = [
                make_chain([make_alternatives(each), *rest]) for each in (waiting, settled) if each
            ]
            return make_chain([*items[:-1], make_alternatives(ways)])
        _append(items, part)
    return items[0] if len(items) == 1 else Chain(tuple(items))


def _is_waiting(part: Part) -> bool:
    """Return whether only a literal after it can mark its end."""
    if isinstance(part, Chain):
        return bool(part.items) and _is_waiting(part.items[-1])
    return isinstance(part, Terminal) and part.is_open and not part.ends_literally


def _get_options(part: Alternatives | Loop) -> tuple[Part, ...]:
    """Return the same language as alternatives."""
    if isinstance(part, Alternatives):
        return part.items
    minimum, maximum = (
        max(part.min_count - 1, 0),
        None if part.max_count is None else part.max_count - 1,
    )
    more = Chain((part.item, make_loop(part.item, minimum, maximum)))
    return (more,) if part.min_count else (EMPTY, more)


def _append(items: list[Part], part: Part) -> None:
    last = items[-1] if items else None
    if isinstance(last, Terminal) and isinstance(part, Terminal):
        items[-1] = _fuse(last, part)
    elif isinstance(last, Embedded) and _get_lead(part):
        items[-1] = replace(last, after=last.after + _get_lead(part))
        rest = _remove_lead(part, _get_lead(part))
        items += [] if rest == EMPTY else [rest]
    else:
        items.append(part)


def _fuse(left: Terminal, right: Terminal) -> Terminal:
    ends = right.ends_literally and not (right.nullable and not left.ends_literally)
    stays_open = left.is_open and not right.lead.startswith(left.stops or "\0")
    whole = Terminal(
        rest=right.rest,
        nullable=left.nullable and right.nullable,
        lead=left.lead + right.lead,
        beginnings=right.beginnings,
        is_open=stays_open or right.is_open,
        ends_literally=ends,
        stops=() if stays_open else right.stops,
        pointer=right.pointer if right.is_open else left.pointer,
    )
    if not left.rest:
        return whole
    first = alternate([left.beginnings, right.first]) if left.nullable else left.beginnings
    rest = f"{left.rest} {right.expression}"
    return replace(whole, lead=left.lead, rest=rest, beginnings=first)


def make_alternatives(options: Sequence[Part]) -> Part:
    """Return one of the options. Regular ones fuse; others share the literal that they begin with.

    Otherwise one option's lexeme could hide another's that ends inside it.
    """
    nested = (each.items if isinstance(each, Alternatives) else (each,) for each in options)
    flat = list(dict.fromkeys(part for parts in nested for part in parts))
    if len(flat) == 1:
        return flat[0]
    regular = [option for option in flat if isinstance(option, Terminal)]
    if len(regular) + (EMPTY in flat) < len(flat):
        return _factor(flat)
    fused = Terminal(
        f"({' | '.join(option.expression for option in regular)})",
        nullable=any(option.nullable for option in regular),
        beginnings=alternate(option.first for option in regular),
        is_open=any(option.is_open for option in regular),
        ends_literally=all(option.ends_literally for option in regular),
        pointer=next((option.pointer for option in regular if option.is_open), ""),
    )
    return _repeat(fused, 0, 1) if EMPTY in flat else fused


def _factor(options: Sequence[Part]) -> Part:
    alike: dict[str, list[Part]] = {}
    for index, option in enumerate(options):
        alike.setdefault(_get_lead(option)[:1] or f"alone {index}", []).append(option)
    shared = []
    for group in alike.values():
        if len(group) > 1:
            prefix = _find_common_prefix([_get_lead(option) for option in group])
            rests = [_remove_lead(option, prefix) for option in group]
            group = [make_chain([make_literal(prefix), make_alternatives(rests)])]
        shared += group
    return shared[0] if len(shared) == 1 else Alternatives(tuple(shared))


def _find_common_prefix(texts: Sequence[str]) -> str:
    """Return the longest common prefix."""
    low, high = min(texts), max(texts)
    pairs = enumerate(zip(low, high, strict=False))
    return low[: next((i for i, (a, b) in pairs if a != b), len(low))]


def _get_lead(part: Part) -> str:
    """Return the literal that every text of a part begins with."""
    match part:
        case Terminal():
            return part.lead
        case Chain((Terminal() as head, *_)):
            return head.lead
    return ""


def _remove_lead(part: Part, lead: str) -> Part:
    """Return the part after its literal lead."""
    if isinstance(part, Chain):
        return make_chain([_remove_lead(part.items[0], lead), *part.items[1:]])
    assert isinstance(part, Terminal)
    rest = replace(part, lead=part.lead.removeprefix(lead))
    return rest if rest.lead or rest.rest else EMPTY


def make_loop(item: Part, min_count: int, max_count: int | None) -> Part:
    if max_count == 0 or item == EMPTY:
        return EMPTY
    if (min_count, max_count) == (1, 1):
        return item
    return (
        _repeat(item, min_count, max_count)
        if isinstance(item, Terminal)
        else Loop(item, min_count, max_count)
    )


def _repeat(item: Terminal, min_count: int, max_count: int | None) -> Terminal:
    return replace(
        item,
        lead="",
        rest=f"({item.expression}){write_repetition(min_count, max_count)}",
        beginnings=item.first,
        nullable=item.nullable or min_count == 0,
        stops=(),
        ends_literally=item.ends_literally and min_count > 0,
    )


def make_free_text(pointer: str, excludes: Sequence[str], max_chars: int | None) -> Part:
    """Make a part of at most `max_chars` characters without the excluded strings."""
    if max_chars == 0:
        return EMPTY
    expression = "/(?s:.*)/" if max_chars is None else f"/(?s:.{{0,{max_chars}}})/"
    if excludes:
        alternatives_text = " | ".join(map(quote, excludes))
        expression = f"({expression} & ~(/(?s:.*)/ ({alternatives_text}) /(?s:.*)/))"
    stops = tuple(exclude for exclude in excludes if not _has_self_overlap(exclude))
    return Terminal(expression, nullable=True, is_open=True, stops=stops, pointer=pointer)


def embed_in_text(once: Part, text: Part, *, repeats: bool = True) -> Part:
    """Return tags in text: `once` any number of times, then `text`; without `repeats`, either
    `once` or `text`."""
    return (
        make_chain([make_loop(once, 0, None), text]) if repeats else make_alternatives([once, text])
    )


def _has_self_overlap(text: str) -> bool:
    """Return whether a text ends with a shorter prefix of itself, as `aba` does."""
    return any(text.startswith(text[start:]) for start in range(1, len(text)))
