"""Writes parts in llguidance's Lark, so that no lexeme runs past its end."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from completions.grammars import ebnf, tokens
from completions.grammars.compiler import DEFAULT_COMPILER, Compiler
from completions.grammars.exceptions import Diagnostic, GrammarError
from completions.grammars.limits import NOT_LARK_NAMES, check_chains
from completions.grammars.structural_tag.parts import (
    NONE,
    SOME,
    Alternatives,
    Chain,
    Delimiter,
    Embedded,
    Loop,
    OneToken,
    Opaque,
    Part,
    Terminal,
    alternate,
    get_first,
    is_nullable,
    quote,
)
from completions.grammars.tokens import IdRanges
from completions.regular.writer import write_repetition

MAX_INLINE = 40
"""Characters. Longer symbols are written once and named, as several tools may share one."""
_AMBIGUOUS = (
    "the end of this text is ambiguous: let a literal or the end string of a tag follow it, or "
    "exclude the beginning of the next part"
)

_START = re.compile(rf"{NOT_LARK_NAMES.pattern}|\bstart\b")
_INNER = "start_of_input"
_FREE_TOKENS = (
    "text after free tokens is free tokens too; let a token end them, as an end of type token does"
)


class Writer:
    """Collector of the rules and terminals of one grammar."""

    def __init__(self, compiler: Compiler = DEFAULT_COMPILER) -> None:
        self._compiler = compiler
        self.warnings: list[Diagnostic] = []
        self._embedded: dict[str, str] = {}
        self._names: dict[Embedded, str] = {}
        self._terminals: dict[str, str] = {}
        self._lazy: dict[str, str] = {}
        self._symbols: dict[str, str] = {}
        self._token_sets: dict[IdRanges, str] = {}
        self._disjoint: Mapping[IdRanges, list[IdRanges]] = {}
        self._conflicts: dict[tuple[str, str], bool] = {}

    def write(
        self, root: Part, grammars: Sequence[Mapping[str, object]] = (), rules: Sequence[str] = ()
    ) -> str:
        """Return llguidance's list of grammars: this one with the rules given, those in EBNF that
        it uses by name, and those given. Raises GrammarError.
        """
        self._disjoint = tokens.split_disjoint(_iter_token_ids(root))
        start = f"start: {self._write_rule(root, NONE)}"
        lazy = (f"{name}[lazy]: {terminal}" for terminal, name in self._lazy.items())
        terminals = (f"{name}: {text}" for text, name in self._terminals.items())
        symbols = (f"{name}: {text}" for text, name in self._symbols.items())
        sets = (f"{name}: {tokens.write_ids(ids)}" for ids, name in self._token_sets.items())
        lark = "\n".join([start, *lazy, *symbols, *sets, *terminals, *rules])
        used = [{"name": name, "lark_grammar": text} for text, name in self._embedded.items()]
        return json.dumps(
            {"grammars": [{"lark_grammar": lark}, *used, *grammars]}, ensure_ascii=False
        )

    def _write_rule(self, part: Part, follow: str) -> str:
        """Return an expression for a rule; `follow` includes the first characters of what comes
        next."""
        match part:
            case Terminal():
                return self._write_terminal(part, follow)
            case Opaque(expression):
                is_short = len(expression) <= MAX_INLINE
                name = f"s{len(self._symbols)}"
                return expression if is_short else self._symbols.setdefault(expression, name)
            case OneToken():
                return self._write_token(part)
            case Embedded():
                return f"@{self._write_grammar(part)}"
            case Delimiter(text, True):
                return self._lazy.setdefault(quote(text), f"m{len(self._lazy)}")
            case Delimiter(text):
                return quote(text)
            case Chain(items):
                return self._write_chain(items, follow)
            case Alternatives(options):
                return f"({' | '.join(self._write_rule(option, follow) for option in options)})"
            case Loop():
                return self._write_loop(part, follow)

    def _write_terminal(self, part: Terminal, follow: str) -> str:
        if part.nullable:
            return f"({self._write_lexeme(part, f'({part.expression}) & {SOME}', follow)})?"
        return self._write_lexeme(part, part.expression, follow)

    def _write_loop(self, part: Loop, follow: str) -> str:
        item = part.item
        if isinstance(item, OneToken):
            self._check_end(item, follow)
        again = follow if part.max_count == 1 else alternate([follow, get_first(item)])
        return (
            f"({self._write_rule(item, again)}){write_repetition(part.min_count, part.max_count)}"
        )

    def _write_token(self, part: OneToken) -> str:
        """Return one of some tokens, as alternatives among sets that do not overlap."""
        sets = self._token_sets
        names = [sets.setdefault(each, f"k{len(sets)}") for each in self._disjoint[part.ids]]
        return names[0] if len(names) == 1 else f"({' | '.join(names)})"

    def _check_end(self, free: OneToken, follow: str) -> None:
        """Raise GrammarError if text marks the end of free tokens, which may contain that text."""
        source = self._compiler.tokens
        if follow != NONE and source and tokens.load_table(source).find_leads(free.ids):
            raise GrammarError(_FREE_TOKENS, pointer=free.pointer)

    def _write_grammar(self, part: Embedded) -> str:
        """Return the name of a grammar."""
        if part not in self._names:
            try:
                text = self._write_lark(part) if part.is_lark else self._write_ebnf(part)
            except GrammarError as error:
                error.pointer = part.pointer or None
                raise
            name = self._embedded.setdefault(text, f"embedded_{len(self._embedded)}")
            self._names[part] = name
        return self._names[part]

    def _write_ebnf(self, part: Embedded) -> str:
        grammar = ebnf.parse(part.text, self._compiler)
        make = grammar.make
        start = make.make_reference(part.rule) if part.rule else grammar.start
        grammar.start = make.make_concatenation([start, make.make_literal(part.after)])
        self.warnings += grammar.make_warnings(part.pointer)
        text = ebnf.write(grammar, self._compiler.limits)
        check_chains(text, self._compiler.limits)
        return text

    def _write_lark(self, part: Embedded) -> str:
        """Return a checked grammar in Lark with another start, which the literal follows."""
        names = _START.sub(lambda match: _INNER if match[0] == "start" else match[0], part.text)
        return f"{names}\nstart: {_INNER} {quote(part.after)}"

    def _write_chain(self, items: tuple[Part, ...], follow: str) -> str:
        symbols = []
        for item in reversed(items):
            symbols.append(self._write_rule(item, follow))
            follow = alternate([get_first(item), follow]) if is_nullable(item) else get_first(item)
        return " ".join(reversed(symbols)) or '""'

    def _write_lexeme(self, part: Terminal, expression: str, follow: str) -> str:
        name = self._terminals.setdefault(expression, f"T{len(self._terminals)}")
        if not part.is_open or follow == NONE or not self._can_run_past_end(expression, follow):
            return name
        if not part.ends_literally:
            raise GrammarError(_AMBIGUOUS, pointer=part.pointer)
        return self._lazy.setdefault(name, f"t{name[1:]}")

    def _can_run_past_end(self, expression: str, follow: str) -> bool:
        """Return whether a text of the lexeme and what follows it can begin a longer text of the
        lexeme.

        llguidance decides this: it looks for a text that is in both languages.
        """
        key = expression, follow
        if key not in self._conflicts:
            both = f"start: B\nB: (T {follow} /(?s:.*)/) & T\nT: {expression}"
            self._conflicts[key] = not DEFAULT_COMPILER.find_error(both).startswith("NoExtension")
        return self._conflicts[key]


def _iter_token_ids(root: Part) -> Iterator[IdRanges]:
    """Yield the sets of tokens in a part."""
    waiting = [root]
    while waiting:
        part = waiting.pop()
        match part:
            case OneToken(ids):
                yield ids
            case Chain(items) | Alternatives(items):
                waiting += items
            case Loop(item):
                waiting.append(item)
