"""A root that is a TagDispatch whose tags lead to recursive rules.

Its free text stands beside the lexemes of those rules, and no finite look at what follows what
tells them apart. So each rule becomes a grammar of its own inside a structural tag's dispatch,
which means the same.
"""

from completions.grammars.compiler import TOO_MANY_ALTERNATIVES
from completions.grammars.ebnf import Grammar
from completions.grammars.ebnf.expressions import (
    Alternation,
    Concatenation,
    Expression,
    FreeText,
    Reference,
    Repeat,
)
from completions.grammars.ebnf.grammar import ROOT
from completions.grammars.ebnf.rules import Facts
from completions.grammars.structural_tag.parts import (
    Embedded,
    Part,
    alternatives,
    chain,
    free_text,
    literals,
    tags_in_text,
)


def part(grammar: Grammar) -> Part | None:
    """The root as a structural tag would have it; None where it is no such TagDispatch."""
    root = grammar.rules[ROOT]
    match root:
        case Concatenation((Repeat(body=body, low=0, high=None), FreeText(avoided, ""))):
            dispatches, loops = _options(body), True
        case Alternation((*dispatches, FreeText(avoided, ""))):
            loops = False
        case _:
            return None
    tags: dict[str, list[str]] = {}
    for dispatch in dispatches:
        match dispatch:
            case Concatenation((FreeText(around, tag), Reference(name))) if around == avoided:
                tags.setdefault(name, []).append(tag)
            case _:
                return None
    if Facts(grammar.rules, grammar.start).is_regular(root):
        return None
    text = free_text("", avoided, None)
    once = [
        chain([text, literals(before), Embedded(grammar.text, rule=name)])
        for name, before in tags.items()
    ]
    return tags_in_text(alternatives(once), text) if loops else alternatives([*once, text])


def _options(body: Expression) -> list[Expression]:
    return list(body.options) if isinstance(body, Alternation) else [body]


def explain(message: str, text: str) -> str:
    """What to do about a grammar that is too complex, if a TagDispatch makes it so."""
    if message == TOO_MANY_ALTERNATIVES and "TagDispatch" in text:
        return "too complex: a TagDispatch that leads to recursive rules must be the whole of root"
    return message
