"""Parts written as llguidance's Lark, so that no lexeme runs past its end."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from completions.grammars import ebnf
from completions.grammars.compiler import complaint
from completions.grammars.exceptions import GrammarError
from completions.grammars.limits import DEFAULT_LIMITS, Limits, check_chains
from completions.grammars.structural_tag.parts import (
    NONE,
    SOME,
    Alternatives,
    Chain,
    Embedded,
    Loop,
    Mark,
    Opaque,
    Part,
    Terminal,
    either,
    first,
    is_nullable,
    quoted,
    times,
)

MAX_INLINE = 40
"""Characters of a symbol that is written where it is used."""
_AMBIGUOUS = (
    "nothing tells where this text ends: let a literal follow it, or the end string of a tag, "
    "or exclude how the next part begins"
)


def named(name: str, grammar: str) -> list[dict[str, Any]]:
    """A translated grammar as entries of llguidance's list, of which the first has the name."""
    if not grammar.lstrip().startswith("{"):
        return [{"name": name, "lark_grammar": grammar}]
    first, *rest = json.loads(grammar)["grammars"]
    return [{**first, "name": name}, *rest]


class Writer:
    """Collects the rules and terminals of one grammar."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._embedded: dict[str, str] = {}
        self._names: dict[Embedded, str] = {}
        self._terminals: dict[str, str] = {}
        self._lazy: dict[str, str] = {}
        self._symbols: dict[str, str] = {}
        self._conflicts: dict[tuple[str, str], bool] = {}

    def write(self, root: Part, grammars: Sequence[Mapping[str, Any]] = ()) -> str:
        """llguidance's list of grammars: this one, those in EBNF that it uses by name, and those
        given. Raises GrammarError.
        """
        start = f"start: {self._rule(root, NONE)}"
        lazy = (f"{name}[lazy]: {terminal}" for terminal, name in self._lazy.items())
        terminals = (f"{name}: {text}" for text, name in self._terminals.items())
        symbols = (f"{name}: {text}" for text, name in self._symbols.items())
        lark = "\n".join([start, *lazy, *symbols, *terminals])
        used = [{"name": name, "lark_grammar": text} for text, name in self._embedded.items()]
        return json.dumps(
            {"grammars": [{"lark_grammar": lark}, *used, *grammars]}, ensure_ascii=False
        )

    def _rule(self, part: Part, follow: str) -> str:
        """An expression for a rule; `follow` includes the first characters of what comes next."""
        match part:
            case Terminal():
                return self._terminal(part, follow)
            case Opaque(expression):
                return self._symbol(expression)
            case Embedded():
                return f"@{self._grammar(part)}"
            case Mark(text, cuts):
                return (
                    self._lazy.setdefault(quoted(text), f"m{len(self._lazy)}")
                    if cuts
                    else quoted(text)
                )
            case Chain(items):
                return self._chain(items, follow)
            case Alternatives(options):
                return f"({' | '.join(self._rule(option, follow) for option in options)})"
            case Loop(item, least, most):
                again = follow if most == 1 else either([follow, first(item)])
                return f"({self._rule(item, again)}){times(least, most)}"

    def _symbol(self, expression: str) -> str:
        """Long expressions are written once, as several tools may share one."""
        if len(expression) <= MAX_INLINE:
            return expression
        return self._symbols.setdefault(expression, f"s{len(self._symbols)}")

    def _cutting(self, terminal: str) -> str:
        return self._lazy.setdefault(terminal, f"m{len(self._lazy)}")

    def _grammar(self, part: Embedded) -> str:
        if part not in self._names:
            try:
                written = self._written(part)
            except GrammarError as error:
                error.pointer = part.pointer or None
                raise
            name = self._embedded.setdefault(written, f"ebnf_{len(self._embedded)}")
            self._names[part] = name
        return self._names[part]

    def _written(self, part: Embedded) -> str:
        grammar = ebnf.parse(part.text, self._limits)
        make = grammar.make
        start = make.reference(part.rule) if part.rule else grammar.start
        grammar.start = make.concatenation([start, make.literal(part.after)])
        written = ebnf.write(grammar, self._limits)
        check_chains(written, self._limits)
        return written

    def _chain(self, items: tuple[Part, ...], follow: str) -> str:
        written = []
        for item in reversed(items):
            written.append(self._rule(item, follow))
            follow = either([first(item), follow]) if is_nullable(item) else first(item)
        return " ".join(reversed(written)) or '""'

    def _terminal(self, part: Terminal, follow: str) -> str:
        if not part.nullable:
            return self._lexeme(part, part.expression, follow)
        return f"({self._lexeme(part, f'({part.expression}) & {SOME}', follow)})?"

    def _lexeme(self, part: Terminal, expression: str, follow: str) -> str:
        name = self._terminals.setdefault(expression, f"T{len(self._terminals)}")
        if not part.is_open or follow == NONE or not self._runs_past_its_end(expression, follow):
            return name
        if not part.ends_literally:
            raise GrammarError(_AMBIGUOUS, pointer=part.pointer)
        return self._lazy.setdefault(name, f"t{name[1:]}")

    def _runs_past_its_end(self, expression: str, follow: str) -> bool:
        """Whether a text of it, followed so, is the beginning of a longer text of it.

        Asked of llguidance: is the intersection of both languages empty?
        """
        key = expression, follow
        if key not in self._conflicts:
            both = f"start: B\nB: (T {follow} /(?s:.*)/) & T\nT: {expression}"
            self._conflicts[key] = not complaint(both).startswith("NoExtension")
        return self._conflicts[key]
