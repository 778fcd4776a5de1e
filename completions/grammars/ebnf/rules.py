"""Properties of the rules of a grammar: used, able to end, possibly empty, regular."""

from collections.abc import Callable, Mapping

from completions.grammars.ebnf.expressions import (
    Alternation,
    Concatenation,
    Expression,
    FreeText,
    Reference,
    Repeat,
    Substring,
    children,
    walk,
)
from completions.grammars.ebnf.grammar import Grammar
from completions.grammars.exceptions import GrammarError
from completions.grammars.limits import Limits

Rules = Mapping[str, Expression]
Known = Mapping[Expression, bool]


def references(body: Expression) -> list[str]:
    """The rules that an expression refers to."""
    return [node.name for node in walk([body]) if isinstance(node, Reference)]


def ordered(rules: Rules, start: Expression) -> list[str]:
    """The rules that the start leads to, each after those that it refers to, except in cycles."""
    order: list[str] = []
    seen: set[str] = set()
    stack = [("", iter(references(start)))]
    while stack:
        name, rest = stack[-1]
        following = next((each for each in rest if each not in seen), None)
        if following is None:
            order.append(name)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(references(rules[following]))))
    return order[:-1]


def prune(grammar: Grammar) -> None:
    """Drop the rules that the start does not lead to, and order the others.

    Raises GrammarError for a rule that matches no finite text.
    """
    grammar.rules = {name: grammar.rules[name] for name in ordered(grammar.rules, grammar.start)}
    ending = _grown(grammar.rules, _can_end)
    endless = [name for name in grammar.rules if name not in ending]
    if endless:
        # The first of them in the text is a good guess at the cause.
        name = min(endless, key=grammar.places.__getitem__)
        message = f"the rule {name} can never end: add an alternative that does not lead back to it"
        raise GrammarError.at(grammar.text, grammar.places[name], message)


def check_repetition(grammar: Grammar, limits: Limits) -> None:
    """Raises GrammarError if nested counts, also through rules, multiply to too many."""
    most = limits.max_repetition
    by_rule: dict[str, int] = {}
    for name, body in grammar.rules.items():
        products: dict[Expression, int] = {}
        for node in walk([body]):
            product = max((products[child] for child in children(node)), default=1)
            if isinstance(node, Reference):
                product = by_rule.get(node.name, 1)
            elif isinstance(node, Repeat):
                product *= max(node.low, node.high or 1)
            products[node] = product
            if product > most:
                message = f"the repetitions of the rule {name} multiply to more than {most}"
                raise GrammarError.at(grammar.text, grammar.places[name], message)
        by_rule[name] = products[body]


class Facts:
    """Tells whether expressions may be empty and whether they are regular, with a cache."""

    def __init__(self, rules: Rules, start: Expression) -> None:
        self._nullable_rules = _grown(rules, _is_nullable)
        self._regular_rules: set[str] = set()
        self._nullable: dict[Expression, bool] = {}
        self._regular: dict[Expression, bool] = {}
        # In a cycle a rule comes before one that it refers to, so no rule of a cycle is regular.
        for name in ordered(rules, start):
            if self.is_regular(rules[name]):
                self._regular_rules.add(name)

    def is_nullable(self, node: Expression) -> bool:
        return self._worked_out(self._nullable, node, _is_nullable, self._nullable_rules)

    def is_regular(self, node: Expression) -> bool:
        """Whether it can be written without recursion."""
        return self._worked_out(self._regular, node, _is_regular, self._regular_rules)

    @staticmethod
    def _worked_out(
        known: dict[Expression, bool], node: Expression, holds: "Property", rules: set[str]
    ) -> bool:
        if node not in known:
            for each in walk([node], known):
                known[each] = holds(each, known, rules)
        return known[node]


Property = Callable[[Expression, Known, set[str]], bool]
"""Whether an expression has a property, given the children and the rules that have it."""


def _can_end(node: Expression, known: Known, ending: set[str]) -> bool:
    if isinstance(node, Reference):
        return node.name in ending
    if isinstance(node, Alternation):
        return any(known[option] for option in node.options)
    if isinstance(node, Repeat) and node.low == 0:
        return True
    return all(known[child] for child in children(node))


def _is_nullable(node: Expression, known: Known, nullable: set[str]) -> bool:
    if isinstance(node, Reference):
        return node.name in nullable
    if isinstance(node, Concatenation):
        return all(known[part] for part in node.parts)
    if isinstance(node, Alternation):
        return any(known[option] for option in node.options)
    if isinstance(node, Repeat):
        return node.low == 0 or known[node.body]
    return isinstance(node, Substring) or (isinstance(node, FreeText) and not node.end)


def _is_regular(node: Expression, known: Known, regular: set[str]) -> bool:
    if isinstance(node, Reference):
        return node.name in regular
    return all(known[child] for child in children(node))


def _grown(rules: Rules, holds: Property) -> set[str]:
    """The rules whose bodies have a property: the least set, grown until nothing is added."""
    found: set[str] = set()
    before = -1
    while len(found) > before:
        before = len(found)
        for name, body in rules.items():
            if name in found:
                continue
            known: dict[Expression, bool] = {}
            for node in walk([body]):
                known[node] = holds(node, known, found)
            if known[body]:
                found.add(name)
    return found
