"""Left recursion behind a part that may be empty, as in X ::= N X A | B with N nullable.

A parser that reads N does not know how many levels of X it has entered, and follows all of them. If
N is a star, such as white space, N N is N, and X is B | N B A+.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from completions.grammars.ebnf.expressions import (
    Alternation,
    Concatenation,
    Expression,
    Expressions,
    Reference,
    Repeat,
)
from completions.grammars.ebnf.rules import Facts, Grammar, find_references
from completions.grammars.exceptions import GrammarError
from completions.grammars.messages import TOO_MANY_ALTERNATIVES, truncate


def remove(grammar: Grammar) -> None:
    """Rewrite the rules that have it directly, behind one regular star."""
    facts = Facts(grammar.rules, grammar.start)
    for name, body in grammar.rules.items():
        if name in find_references(body):
            solution = _Rule(grammar, facts, name).solve(body)
            if solution is not None:
                grammar.rules[name] = solution


class _Options(NamedTuple):
    """The options of a rule X."""

    ends: list[Expression]
    """B: those that do not begin with X."""
    plain: list[Expression]
    """A of each X A."""
    hidden: list[tuple[Expression, Expression]]
    """N and A of each N X A."""


class _Rule:
    def __init__(self, grammar: Grammar, facts: Facts, name: str) -> None:
        self._grammar = grammar
        self._facts = facts
        self._make: Expressions = grammar.make
        self._unknown = grammar.make.make_reference(name)

    def solve(self, body: Expression) -> Expression | None:
        """Return the body without hidden left recursion; None if it has none, or of another
        form."""
        options = self._split_options(body)
        if options is None or not options.hidden or not options.ends:
            return None
        make, (ends, plain, hidden) = self._make, options
        end = make.make_alternation(ends)
        before = hidden[0][0]
        if not self._is_star(before) or any(each is not before for each, _ in hidden):
            return None
        wrapping = make.make_alternation([after for _, after in hidden])
        every = make.make_repeat(make.make_alternation([*plain, wrapping]), 0, None)
        only_plain = [make.make_repeat(make.make_alternation(plain), 0, None)] if plain else []
        return make.make_alternation(
            [
                make.make_concatenation([end, *only_plain]),
                make.make_concatenation([before, end, *only_plain, wrapping, every]),
            ]
        )

    def _split_options(self, body: Expression) -> _Options | None:
        options = _Options([], [], [])
        for option in body.options if isinstance(body, Alternation) else (body,):
            parts = option.parts if isinstance(option, Concatenation) else (option,)
            at = next((i for i, part in enumerate(parts) if part is self._unknown), None)
            before = parts[: at or 0]
            if at is None or not all(map(self._facts.is_nullable, before)):
                options.ends.append(option)
                continue
            after = self._make.make_concatenation(parts[at + 1 :])
            if self._facts.is_nullable(after):
                return None
            if not before:
                options.plain.append(after)
            elif all(map(self._facts.is_regular, before)):
                options.hidden.append((self._join(before), after))
            else:
                return None
        return options

    def _join(self, parts: Sequence[Expression]) -> Expression:
        """Return the concatenation; only one of equal stars."""
        whole = [self._resolve(part) for part in parts]
        if self._is_star(whole[0]) and all(part is whole[0] for part in whole):
            return whole[0]
        return self._make.make_concatenation(whole)

    def _resolve(self, node: Expression) -> Expression:
        while isinstance(node, Reference):
            node = self._grammar.rules[node.name]
        return node

    @staticmethod
    def _is_star(node: Expression) -> bool:
        return isinstance(node, Repeat) and (node.low, node.high) == (0, None)


def explain(grammar: Grammar, message: str) -> str:
    """Return the message for a grammar that allows too many alternatives, with the rule that causes
    them if it has hidden left recursion."""
    name = _find(grammar) if message == TOO_MANY_ALTERNATIVES else None
    if name is None:
        return message
    location = GrammarError.format_location(grammar.text, grammar.positions[name])
    return (
        f"too complex; the rule {truncate(name)} ({location}) leads back to itself behind a part "
        "that may be empty (hidden left recursion): let that part match at least one character, "
        "or move it out of the recursion"
    )


def _find(grammar: Grammar) -> str | None:
    """Return the first rule that leads to itself on its left side, and on the way behind a part
    that may be empty."""
    facts = Facts(grammar.rules, grammar.start)
    edges = {name: set(_iter_left(body, facts)) for name, body in grammar.rules.items()}
    for name in sorted(edges, key=grammar.positions.__getitem__):
        for following, is_hidden in edges[name]:
            if is_hidden and name in _find_reachable(following, edges):
                return name
    return None


def _iter_left(
    node: Expression, facts: Facts, is_hidden: bool = False
) -> Iterator[tuple[str, bool]]:
    """Yield the rules that an expression may begin with, each with whether a part that may be empty
    comes before."""
    if isinstance(node, Reference):
        yield node.name, is_hidden
    elif isinstance(node, Alternation):
        for option in node.options:
            yield from _iter_left(option, facts, is_hidden)
    elif isinstance(node, Repeat):
        yield from _iter_left(node.body, facts, is_hidden)
    elif isinstance(node, Concatenation):
        for index, part in enumerate(node.parts):
            yield from _iter_left(part, facts, is_hidden or index > 0)
            if not facts.is_nullable(part):
                break


def _find_reachable(start: str, edges: dict[str, set[tuple[str, bool]]]) -> set[str]:
    seen, waiting = set[str](), [start]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += [following for following, _ in edges[name]]
    return seen
