"""A root that is a TagDispatch whose tags lead to recursive rules.

Its free text and the lexemes of those rules cannot be distinguished with finite lookahead. So each
rule becomes a separate grammar inside a structural tag's dispatch, which accepts the same texts.
"""

from completions.grammars.ebnf import Grammar
from completions.grammars.ebnf.expressions import (
    Alternation,
    Concatenation,
    FreeText,
    Reference,
    Repeat,
)
from completions.grammars.ebnf.rules import ROOT, Facts
from completions.grammars.messages import TOO_MANY_ALTERNATIVES
from completions.grammars.structural_tag.parts import (
    Embedded,
    Part,
    embed_in_text,
    make_alternatives,
    make_chain,
    make_free_text,
    make_literal,
)


def lower_dispatch(grammar: Grammar) -> Part | None:
    """Return the root as a part of a structural tag; None if it is not such a TagDispatch."""
    root = grammar.rules[ROOT]
    match root:
        case Concatenation((Repeat(body=body, low=0, high=None), FreeText(avoided, ""))):
            dispatches = list(body.options) if isinstance(body, Alternation) else [body]
            loops = True
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
    text = make_free_text("", avoided, None)
    once = [
        make_chain(
            [
                text,
                make_alternatives(list(map(make_literal, before))),
                Embedded(grammar.text, rule=name),
            ]
        )
        for name, before in tags.items()
    ]
    return embed_in_text(make_alternatives(once), text, repeats=loops)


def explain(message: str, text: str) -> str:
    """Return the message, or what to change if a TagDispatch makes the grammar too complex."""
    if message == TOO_MANY_ALTERNATIVES and "TagDispatch" in text:
        return "too complex: a TagDispatch that leads to recursive rules must be the whole of root"
    return message
