"""The options of a rule, as in `name[max_chars=80, lazy] ::= ...`, with XGrammar's meaning.

A budget closes a rule once it is used up, at the first place where the rule can end. So does
`lazy`, which is a budget of no characters.
"""

import re

from completions.grammars.ebnf.expressions import (
    EMPTY,
    Characters,
    Expression,
    Expressions,
    Repeat,
    Tokens,
)
from completions.grammars.ebnf.lexer import Cursor, Token
from completions.grammars.ebnf.productions import resolve
from completions.grammars.ebnf.rules import Facts, Grammar, Option
from completions.grammars.exceptions import GrammarError
from completions.grammars.messages import truncate

_OPTION = re.compile(
    r"\s*+(?P<name>\w++)\s*+(?:=\s*+(?P<value>[^\s,\"]++|\"[^\"]*+\"))?+\s*+(?:,|$)"
)
_BUDGETS = ("max_tokens", "max_chars")
_REFUSED = {
    "temperature": "llguidance does not report which rule a token belongs to; remove it, and send "
    "the field temperature, which holds for the whole output",
    "capture": "llguidance reports only some of the texts that a rule matched; remove it, and find "
    "the rule's text in the output, or send json_schema, whose properties have names",
    "stop_capture": "llguidance does not report it; remove it, and find the text in the output",
}
"""Why an option is refused, and what to send instead."""
MAX_BUDGET = 100_000


def read(cursor: Cursor, brackets: Token) -> list[Option]:
    """Return the options in brackets. Raises GrammarError."""
    options: list[Option] = []
    inside, position = brackets.text[1:-1], 0
    while position < len(inside) or not options:
        match = _OPTION.match(inside, position)
        if match is None:
            raise cursor.make_error(brackets, "write options as [max_chars=80, lazy]")
        token = brackets._replace(start=brackets.start + 1 + match.start("name"))
        if any(match["name"] == option.name for option in options):
            raise cursor.make_error(token, f"the option {match['name']} is given twice; remove one")
        options.append(Option(match["name"], _parse_value(cursor, token, match), token.start))
        position = match.end()
    return options


def _parse_value(cursor: Cursor, token: Token, match: re.Match[str]) -> int:
    name, value = match["name"], match["value"]
    if name in _REFUSED:
        raise cursor.make_error(token, f"a rule cannot have the option {name}: {_REFUSED[name]}")
    if name == "lazy" and value is None:
        return 0
    if name not in _BUDGETS:
        raise cursor.make_error(
            token,
            f"a rule has no option {match[0].strip(' ,')[:64]}; use one of: "
            f"{', '.join(_BUDGETS)}, lazy",
        )
    if value is None or not value.isdecimal() or len(value) > 9 or int(value) > MAX_BUDGET:
        quoted = truncate(str(value))
        raise cursor.make_error(
            token, f"{name} must be an integer from 0 to {MAX_BUDGET}, not {quoted}"
        )
    return int(value)


def apply(grammar: Grammar) -> None:
    """Restrict the rules that have options. Raises GrammarError for an option that cannot be
    enforced exactly."""
    facts = Facts(grammar.rules, grammar.start)
    for name in [name for name in grammar.rules if name in grammar.options]:
        for option in grammar.options[name]:
            body = resolve(grammar.rules[name], grammar.rules)
            restricted = _restrict(grammar, facts, body, option)
            if restricted is None:
                raise GrammarError.at_offset(grammar.text, option.position, _REASONS[option.name])
            grammar.rules[name] = restricted


_REASONS = {
    "max_tokens": "max_tokens is supported where the rule repeats tokens by id, as in "
    "ExcludeToken(5)*; bound text with max_chars",
    "max_chars": "max_chars is supported in rules without recursion and without tokens by id; "
    "bound the repetitions inside, as in [a-z]{0,80}",
    "lazy": "lazy is supported in rules without recursion and without tokens by id; exclude "
    "from the rule what follows it, as in [^,]* before a comma",
}


def _restrict(
    grammar: Grammar, facts: Facts, body: Expression, option: Option
) -> Expression | None:
    if option.name == "max_tokens":
        return _limit_tokens(grammar, facts, body, option.value)
    return _end_early(grammar.make, body, option.value) if facts.is_regular(body) else None


def _limit_tokens(
    grammar: Grammar, facts: Facts, body: Expression, max_tokens: int
) -> Expression | None:
    if body is EMPTY or (max_tokens == 0 and facts.is_nullable(body)):
        return EMPTY
    if isinstance(body, Tokens) and max_tokens:
        return body
    if isinstance(body, Repeat) and isinstance(resolve(body.body, grammar.rules), Tokens):
        return _limit_repeats(grammar.make, body, max_tokens)
    return None


def _end_early(make: Expressions, body: Expression, max_tokens: int) -> Expression:
    if isinstance(body, Repeat) and isinstance(body.body, Characters):
        return _limit_repeats(make, body, max_tokens)
    return make.make_ending_early(body, max_tokens)


def _limit_repeats(make: Expressions, body: Repeat, max_tokens: int) -> Expression:
    """Return the repetition of single characters or tokens, which can end after each from `low`
    on."""
    high = max_tokens if body.high is None else min(max_tokens, body.high)
    return make.make_repeat(body.body, body.low, max(body.low, high))
