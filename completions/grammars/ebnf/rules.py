"""A grammar as named rules, and which of them are used, can end, may be empty or are regular.

Linear recursion becomes loops by Arden's lemma: X ::= A X | B is A* B, and X ::= X A | B is B A*.
Most recursive rules of hand-written grammars are such lists, and fit into one terminal as loops.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from completions.grammars.ebnf.expressions import (
    EMPTY,
    Alternation,
    Concatenation,
    EndingEarly,
    Expression,
    Expressions,
    FreeText,
    Reference,
    Repeat,
    Substring,
    Tokens,
    get_children,
    walk,
)
from completions.grammars.exceptions import Diagnostic, GrammarError
from completions.grammars.limits import Limits
from completions.grammars.messages import truncate

ROOT = "root"


class Option(NamedTuple):
    """One option of a rule and its offset in the grammar."""

    name: str
    value: int
    position: int


@dataclass(slots=True)
class Grammar:
    """Rules whose expressions `make` built. Every reference names a rule."""

    text: str
    make: Expressions
    start: Expression
    """The expression that a whole text matches: the root, unless a caller adds to it."""
    rules: dict[str, Expression] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    """The offset in `text` of each rule's definition."""
    options: dict[str, list[Option]] = field(default_factory=dict)
    """The options of the rules that have any."""
    lookaheads: list[int] = field(default_factory=list)
    """The offsets of look-aheads, (= ...), which are hints and restrict no text."""

    def make_warnings(self, pointer: str = "") -> list[Diagnostic]:
        """Return the look-aheads as diagnostics; `pointer` is the grammar's, if it is inside
        JSON."""
        return [
            Diagnostic(
                "lookahead",
                pointer,
                f"{GrammarError.format_location(self.text, offset)}: {_LOOKAHEAD}",
            )
            for offset in self.lookaheads
        ]


_LOOKAHEAD = "look-ahead restricts nothing in this dialect; write what follows instead"
Rules = Mapping[str, Expression]
Knowledge = Mapping[Expression, bool]


def find_references(body: Expression) -> list[str]:
    """Return the rules that an expression refers to."""
    return [node.name for node in walk([body]) if isinstance(node, Reference)]


def sort_rules(rules: Rules, start: Expression) -> list[str]:
    """Return the rules that the start leads to, each after those that it refers to, except in
    cycles."""
    order: list[str] = []
    seen: set[str] = set()
    stack = [("", iter(find_references(start)))]
    while stack:
        name, rest = stack[-1]
        following = next((each for each in rest if each not in seen), None)
        if following is None:
            order.append(name)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(find_references(rules[following]))))
    return order[:-1]


def prune(grammar: Grammar) -> None:
    """Drop the rules that the start does not lead to, and order the others.

    Raises GrammarError for a rule that matches no finite text.
    """
    grammar.rules = {name: grammar.rules[name] for name in sort_rules(grammar.rules, grammar.start)}
    ending = _grow(grammar.rules, _can_end)
    endless = [name for name in grammar.rules if name not in ending]
    if endless:
        # The first of them in the text is a good guess at the cause.
        name = min(endless, key=grammar.positions.__getitem__)
        message = f"the rule {truncate(name)} can never end"
        advice = f"{message}: add an alternative that does not lead back to it"
        raise GrammarError.at_offset(grammar.text, grammar.positions[name], advice)


def check_repetition(grammar: Grammar, limits: Limits) -> None:
    """Raise GrammarError if the product of nested counts, also across rules, is too large."""
    maximum = limits.max_repetition
    by_rule: dict[str, int] = {}
    for name, body in grammar.rules.items():
        products: dict[Expression, int] = {}
        for node in walk([body]):
            product = max((products[child] for child in get_children(node)), default=1)
            if isinstance(node, Reference):
                product = by_rule.get(node.name, 1)
            elif isinstance(node, Repeat):
                product *= max(node.low, node.high or 1)
            products[node] = product
            if product > maximum:
                message = (
                    f"the repetitions of the rule {truncate(name)} multiply to more than {maximum}"
                )
                advice = f"{message}; lower their counts"
                raise GrammarError.at_offset(grammar.text, grammar.positions[name], advice)
        by_rule[name] = products[body]


class Facts:
    """Whether expressions may be empty and whether they are regular, with a cache."""

    def __init__(self, rules: Rules, start: Expression) -> None:
        self._nullable_rules = _grow(rules, _is_nullable)
        self._regular_rules: set[str] = set()
        self._nullable: dict[Expression, bool] = {}
        self._regular: dict[Expression, bool] = {}
        # In a cycle a rule comes before one that it refers to, so no rule of a cycle is regular.
        for name in sort_rules(rules, start):
            if self.is_regular(rules[name]):
                self._regular_rules.add(name)

    def is_nullable(self, node: Expression) -> bool:
        return self._work_out(self._nullable, node, _is_nullable, self._nullable_rules)

    def is_regular(self, node: Expression) -> bool:
        """Return whether it can be written without recursion and without tokens by id."""
        return self._work_out(self._regular, node, _is_regular, self._regular_rules)

    @staticmethod
    def _work_out(
        knowledge: dict[Expression, bool], node: Expression, holds: "Property", rules: set[str]
    ) -> bool:
        if node not in knowledge:
            for each in walk([node], knowledge):
                knowledge[each] = holds(each, knowledge, rules)
        return knowledge[node]


Property = Callable[[Expression, Knowledge, set[str]], bool]
"""Whether an expression has a property, given the children and the rules that have it."""


def _can_end(node: Expression, knowledge: Knowledge, ending: set[str]) -> bool:
    if isinstance(node, Reference):
        return node.name in ending
    if isinstance(node, Alternation):
        return any(knowledge[option] for option in node.options)
    if isinstance(node, Repeat) and node.low == 0:
        return True
    return all(knowledge[child] for child in get_children(node))


def _is_nullable(node: Expression, knowledge: Knowledge, nullable: set[str]) -> bool:
    if isinstance(node, Reference):
        return node.name in nullable
    if isinstance(node, Concatenation):
        return all(knowledge[part] for part in node.parts)
    if isinstance(node, Alternation):
        return any(knowledge[option] for option in node.options)
    if isinstance(node, Repeat):
        return node.low == 0 or knowledge[node.body]
    if isinstance(node, EndingEarly):
        return knowledge[node.body]
    return isinstance(node, Substring) or (isinstance(node, FreeText) and not node.end)


def _is_regular(node: Expression, knowledge: Knowledge, regular: set[str]) -> bool:
    if isinstance(node, Reference):
        return node.name in regular
    return not isinstance(node, Tokens) and all(knowledge[child] for child in get_children(node))


def _grow(rules: Rules, holds: Property) -> set[str]:
    """Return the rules whose bodies have a property: the least fixed point, grown until nothing is
    added."""
    names: set[str] = set()
    before = -1
    while len(names) > before:
        before = len(names)
        for name, body in rules.items():
            if name in names:
                continue
            knowledge: dict[Expression, bool] = {}
            for node in walk([body]):
                knowledge[node] = holds(node, knowledge, names)
            if knowledge[body]:
                names.add(name)
    return names


def remove_linear_recursion(grammar: Grammar) -> None:
    for name, body in grammar.rules.items():
        if name in find_references(body):
            for right in (True, False):
                solution = _Equation(grammar.make, grammar.make.make_reference(name), right).solve(
                    body
                )
                if solution is not None:
                    grammar.rules[name] = solution
                    break


class _Sides(NamedTuple):
    """An expression as A X | B or X A | B: `step` is A, `end` is B. None matches no text."""

    step: Expression | None
    end: Expression | None


class _Equation:
    def __init__(self, make: Expressions, unknown: Expression, right: bool) -> None:
        self._make = make
        self._unknown = unknown
        self._right = right
        self._sides: dict[Expression, _Sides] = {}

    def solve(self, body: Expression) -> Expression | None:
        """Return the body without the unknown; None if that occurs anywhere but at one end."""
        for node in walk([body]):
            if node is self._unknown or any(child in self._sides for child in get_children(node)):
                sides = self._split(node)
                if sides is None:
                    return None
                self._sides[node] = sides
        step, end = self._sides[body]
        if step is None or end is None:
            return None
        loop = self._make.make_repeat(step, 0, None)
        return self._make.make_concatenation([loop, end] if self._right else [end, loop])

    def _split(self, node: Expression) -> _Sides | None:
        if isinstance(node, Reference):
            return _Sides(EMPTY, None)
        if isinstance(node, Alternation):  # options without the unknown are ends
            sides = [self._sides.get(option, _Sides(None, option)) for option in node.options]
            steps, ends = zip(*sides, strict=True)
            return _Sides(self._alternate(steps), self._alternate(ends))
        if isinstance(node, Concatenation):
            return self._split_concatenation(node)
        if isinstance(node, Repeat) and (node.low, node.high) == (0, 1):
            step, end = self._sides[node.body]
            return _Sides(step, self._alternate([EMPTY, end]))
        return None

    def _split_concatenation(self, node: Concatenation) -> _Sides | None:
        parts = node.parts
        edge, others = (parts[-1], parts[:-1]) if self._right else (parts[0], parts[1:])
        if edge not in self._sides or any(part in self._sides for part in others):
            return None
        step, end = (
            each
            and self._make.make_concatenation([*others, each] if self._right else [each, *others])
            for each in self._sides[edge]
        )
        return _Sides(step, end)

    def _alternate(self, options: Iterable[Expression | None]) -> Expression | None:
        present = [option for option in options if option is not None]
        return self._make.make_alternation(present) if present else None
