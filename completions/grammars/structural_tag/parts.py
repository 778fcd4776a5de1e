"""What a structural tag is made of: regular pieces, which fuse, and what lies between them.

llguidance cuts the output into lexemes and never backs up to an earlier end of one. So neighbours
that are regular become one lexeme, in which nothing can be cut wrongly; `writer` sees to those
that are left.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from completions.grammars.exceptions import GrammarError

ANY = "/(?s:.)/"
"""First characters of which nothing is known."""
SOME = "/(?s:.+)/"
NONE = ""
"""First characters of what is no text."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """A regular language, as llguidance's Lark writes it inside a terminal."""

    rest: str
    """What follows the literal `lead`, with which every text of it begins."""
    nullable: bool = False
    lead: str = ""
    beginnings: str = ANY
    """A terminal of one character that includes every first character of `rest`."""
    is_open: bool = False
    """Whether it holds more than literals, so that it may not know where to end."""
    ends_literally: bool = False
    """Whether every text of it ends with a literal."""
    stops: tuple[str, ...] = ()
    """Texts that its open end cannot hold: one that follows tells where it ends."""
    pointer: str = ""
    """To the last open node in it."""

    @property
    def expression(self) -> str:
        return f"{quoted(self.lead)} {self.rest}".rstrip() if self.lead else self.rest

    @property
    def first(self) -> str:
        return quoted(self.lead[0]) if self.lead else self.beginnings

    @property
    def weight(self) -> int:
        return len(self.lead) + len(self.rest)


@dataclass(frozen=True, slots=True)
class Opaque:
    """What is not regular: a grammar inside the grammar, or tokens. Not nullable."""

    expression: str
    first: str
    weight = 1


@dataclass(frozen=True, slots=True)
class Embedded:
    """A grammar in EBNF and the literal after it, which `ebnf` keeps apart from it."""

    text: str
    pointer: str = ""
    after: str = ""
    rule: str = ""
    """Where it begins, if not at its root."""
    first = ANY
    weight = 1


@dataclass(frozen=True, slots=True)
class Mark:
    """A literal that is a lexeme of its own."""

    text: str
    cuts: bool
    """Whether it ends any text that could go on over it."""
    weight = 1

    @property
    def first(self) -> str:
        return quoted(self.text[0])


@dataclass(frozen=True, slots=True)
class Chain:
    items: "tuple[Part, ...]"
    weight: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", _weigh(self.items))


@dataclass(frozen=True, slots=True)
class Alternatives:
    options: "tuple[Part, ...]"
    weight: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", _weigh(self.options))


@dataclass(frozen=True, slots=True)
class Loop:
    """`most` None means any number."""

    item: "Part"
    least: int
    most: int | None

    @property
    def weight(self) -> int:
        return self.item.weight + 1


Part = Terminal | Opaque | Embedded | Mark | Chain | Alternatives | Loop
MAX_WEIGHT = 200_000
"""Of a part: about the characters that it takes. Free text before alternatives multiplies them."""


def _weigh(parts: Iterable[Part]) -> int:
    weight = 1 + sum(part.weight for part in parts)
    if weight > MAX_WEIGHT:
        raise GrammarError("too complex: it has too many alternatives after free text")
    return weight


EMPTY = Chain(())


def literal(text: str) -> Part:
    return Terminal("", lead=text, ends_literally=True) if text else EMPTY


def quoted(text: str) -> str:
    """A Lark literal."""
    return json.dumps(text, ensure_ascii=False)


def literals(texts: Iterable[str]) -> Part:
    return alternatives([literal(text) for text in texts])


def is_nullable(part: Part) -> bool:
    match part:
        case Terminal():
            return part.nullable
        case Opaque() | Embedded() | Mark():
            return False
        case Chain(items):
            return all(map(is_nullable, items))
        case Alternatives(options):
            return any(map(is_nullable, options))
        case Loop(item, least, _):
            return least == 0 or is_nullable(item)


def first(part: Part) -> str:
    """A terminal of one character that includes all first characters, or NONE."""
    match part:
        case Terminal() | Opaque() | Embedded() | Mark():
            return part.first
        case Chain(items):
            found = []
            for item in items:
                found.append(first(item))
                if not is_nullable(item):
                    break
            return either(found)
        case Alternatives(options):
            return either(map(first, options))
        case Loop(item):
            return first(item)


def either(terminals: Iterable[str]) -> str:
    known = sorted(set(terminals) - {NONE})
    if not known or ANY in known:
        return ANY if known else NONE
    return known[0] if len(known) == 1 else f"({' | '.join(known)})"


def chain(parts: Sequence[Part]) -> Part:
    """One after the other. Regular neighbours fuse."""
    items: list[Part] = []
    flat = [item for part in parts for item in (part.items if isinstance(part, Chain) else (part,))]
    for index, part in enumerate(flat):
        if items and _waits(items[-1]) and isinstance(part, Alternatives | Loop):
            options = [chain([items[-1], option]) for option in _options(part)]
            waiting = [option for option in options if _waits(option)]
            settled = [option for option in options if not _waits(option)]
            rest = flat[index + 1 :]
            # Those that wait go on into what follows; the others need it once, together.
            ways = [chain([alternatives(each), *rest]) for each in (waiting, settled) if each]
            return chain([*items[:-1], alternatives(ways)])
        _append(items, part)
    return items[0] if len(items) == 1 else Chain(tuple(items))


def _waits(part: Part) -> bool:
    """Whether only a literal after it could tell where it ends."""
    if isinstance(part, Chain):
        return bool(part.items) and _waits(part.items[-1])
    return isinstance(part, Terminal) and part.is_open and not part.ends_literally


def _options(part: Alternatives | Loop) -> tuple[Part, ...]:
    """The same language as alternatives."""
    if isinstance(part, Alternatives):
        return part.options
    least, most = max(part.least - 1, 0), None if part.most is None else part.most - 1
    more = Chain((part.item, loop(part.item, least, most)))
    return (more,) if part.least else (EMPTY, more)


def _append(items: list[Part], part: Part) -> None:
    last = items[-1] if items else None
    if isinstance(last, Terminal) and isinstance(part, Terminal):
        items[-1] = _fused(last, part)
    elif isinstance(last, Embedded) and _lead(part):
        items[-1] = replace(last, after=last.after + _lead(part))
        rest = _without(part, _lead(part))
        items += [] if rest == EMPTY else [rest]
    else:
        items.append(part)


def _fused(left: Terminal, right: Terminal) -> Terminal:
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
    first = either([left.beginnings, right.first]) if left.nullable else left.beginnings
    rest = f"{left.rest} {right.expression}"
    return replace(whole, lead=left.lead, rest=rest, beginnings=first)


def alternatives(options: Sequence[Part]) -> Part:
    """One of them. Regular ones fuse; others share the literal that they begin with.

    Else the lexeme of one could hide that of another that ends inside it.
    """
    flat: list[Part] = []
    for option in options:
        for each in option.options if isinstance(option, Alternatives) else (option,):
            if each not in flat:
                flat.append(each)
    if len(flat) == 1:
        return flat[0]
    regular = [option for option in flat if isinstance(option, Terminal)]
    if len(regular) + (EMPTY in flat) < len(flat):
        return _factored(flat)
    fused = Terminal(
        f"({' | '.join(option.expression for option in regular)})",
        nullable=any(option.nullable for option in regular),
        beginnings=either(option.first for option in regular),
        is_open=any(option.is_open for option in regular),
        ends_literally=all(option.ends_literally for option in regular),
        pointer=next((option.pointer for option in regular if option.is_open), ""),
    )
    return _repeated(fused, 0, 1) if EMPTY in flat else fused


def _factored(options: Sequence[Part]) -> Part:
    alike: dict[str, list[Part]] = {}
    for index, option in enumerate(options):
        alike.setdefault(_lead(option)[:1] or f"alone {index}", []).append(option)
    shared = []
    for group in alike.values():
        if len(group) > 1:
            prefix = _shared([_lead(option) for option in group])
            rests = [_without(option, prefix) for option in group]
            group = [chain([literal(prefix), alternatives(rests)])]
        shared += group
    return shared[0] if len(shared) == 1 else Alternatives(tuple(shared))


def _shared(texts: Sequence[str]) -> str:
    """The longest beginning of all of them."""
    low, high = min(texts), max(texts)
    pairs = enumerate(zip(low, high, strict=False))
    return low[: next((i for i, (a, b) in pairs if a != b), len(low))]


def _lead(part: Part) -> str:
    """A literal with which every text of a part begins."""
    match part:
        case Terminal():
            return part.lead
        case Chain((Terminal() as head, *_)):
            return head.lead
    return ""


def _without(part: Part, lead: str) -> Part:
    """What follows a lead of it."""
    if isinstance(part, Chain):
        return chain([_without(part.items[0], lead), *part.items[1:]])
    assert isinstance(part, Terminal)
    rest = replace(part, lead=part.lead.removeprefix(lead))
    return rest if rest.lead or rest.rest else EMPTY


def loop(item: Part, least: int, most: int | None) -> Part:
    if most == 0 or item == EMPTY:
        return EMPTY
    if (least, most) == (1, 1):
        return item
    return _repeated(item, least, most) if isinstance(item, Terminal) else Loop(item, least, most)


def _repeated(item: Terminal, least: int, most: int | None) -> Terminal:
    """What is repeated without an upper limit does not know where to end either."""
    return replace(
        item,
        lead="",
        rest=f"({item.expression}){times(least, most)}",
        beginnings=item.first,
        nullable=item.nullable or least == 0,
        stops=(),
        ends_literally=item.ends_literally and least > 0,
    )


def times(least: int, most: int | None) -> str:
    """Lark's way to write how often."""
    if (least, most) == (0, 1):
        return "?"
    if most is None:
        return {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    return f"{{{least},{most}}}"


def free_text(pointer: str, excludes: Sequence[str], most: int | None) -> Part:
    """Any characters, `most` at most, among which none of the excluded strings stands."""
    if most == 0:
        return EMPTY
    expression = "/(?s:.*)/" if most is None else f"/(?s:.{{0,{most}}})/"
    if excludes:
        listed = " | ".join(map(quoted, excludes))
        expression = f"({expression} & ~(/(?s:.*)/ ({listed}) /(?s:.*)/))"
    stops = tuple(exclude for exclude in excludes if not _overlaps_itself(exclude))
    return Terminal(expression, nullable=True, is_open=True, stops=stops, pointer=pointer)


def tags_in_text(once: Part, text: Part) -> Part:
    """Any number of tags, each of which brings the text before it, and the text after them."""
    return chain([loop(once, 0, None), text])


def _overlaps_itself(text: str) -> bool:
    """Whether a text ends with a beginning of itself, as in `aba`."""
    return any(text.startswith(text[start:]) for start in range(1, len(text)))
