"""Lexemes that are safe in llguidance. EBNF has no lexer, llguidance has one.

At each position, the lexer follows all lexemes that the parser allows. It goes on while one of them
can, and never returns to an earlier end. So `[a-z]* "end"` as two lexemes never matches: the first
lexeme takes the end. Lexemes are safe if this loses no text: after a word of a lexeme T, no lexeme
U that is allowed beside T may go on with a byte that can also begin what follows T. If one can, U
is split by one level, and so on down to single characters, which are always safe.

The analysis covers all texts at once. Sets of lexemes and of bytes are integers with a bit for each
member.
"""

from collections.abc import Iterator, Mapping

from completions.grammars.ebnf import code_points
from completions.grammars.ebnf.automata import START, Automaton, TooLargeError
from completions.grammars.ebnf.expressions import (
    Characters,
    Expression,
    Expressions,
    Literal,
    NonEmpty,
)
from completions.grammars.ebnf.productions import (
    Lexeme,
    Loop,
    ProductionBuilder,
    Productions,
    Rule,
    Symbol,
)
from completions.grammars.ebnf.rules import Facts
from completions.grammars.ebnf.simulation import Crossing, Simulation, TooAmbiguousError
from completions.grammars.exceptions import GrammarError

MAX_ROUNDS = 500
MAX_LEXEMES = 20_000
MAX_WORK = 2_000_000
"""States visited in all simulations of one grammar, which take some seconds."""
_ALL_BYTES = (1 << 256) - 1
_TOO_AMBIGUOUS = "too ambiguous: many levels can be read in several ways; make the rules distinct"


def safe_productions(
    make: Expressions, rules: dict[str, Expression], start: Expression, facts: Facts
) -> Productions:
    """Productions with safe lexemes. May add rules. Raises GrammarError if it takes too many."""
    split: set[Expression] = set()
    checker = _Checker(rules)
    for _ in range(MAX_ROUNDS):
        productions = ProductionBuilder(make, rules, facts, split).lower(start)
        unsafe = checker.unsafe(productions)
        if not unsafe:
            return productions
        split |= unsafe
    raise GrammarError(_TOO_AMBIGUOUS)


class _Checker:
    """Finds unsafe lexemes. Keeps automata from round to round."""

    def __init__(self, rules: Mapping[str, Expression]) -> None:
        self._rules = rules
        self._automata: dict[Expression, Automaton | None] = {}
        self._work = 0

    def unsafe(self, productions: Productions) -> set[Expression]:
        """The lexemes to split."""
        neighbours = _Neighbours(productions)
        if not any(neighbours.following):
            return set()
        first_bytes = [self._first_bytes(lexeme) for lexeme in neighbours.lexemes]
        next_bytes = [_union(first_bytes, bits) for bits in neighbours.following]
        unsafe = 0
        checked: list[int] = []
        todo = [neighbours.starting]
        while todo:
            group = todo.pop()
            if any(group & ~larger == 0 for larger in checked):
                continue
            checked.append(group)
            for whole, going_on, lead_bytes in self._crossings(neighbours, group):
                # The parser takes any of the lexemes that match, so the lexemes that follow them
                # may be allowed together.
                todo.append(_union(neighbours.following, whole))
                if _union(next_bytes, whole) & lead_bytes:
                    unsafe |= going_on
        found = {neighbours.lexemes[number] for number in _numbers(unsafe)}
        found = {each for each in found if not _is_character(each)}
        # A lexeme without its empty text is split together with its body.
        return found | {each.body for each in found if isinstance(each, NonEmpty)}

    def _crossings(self, neighbours: "_Neighbours", group: int) -> Iterator[Crossing]:
        automata = {}
        for number in _numbers(group):
            automaton = self._automaton(neighbours.lexemes[number])
            if automaton is not None:
                automata[number] = automaton
        simulation = Simulation(automata)
        try:
            yield from simulation.crossings()
            too_large = group & ~sum(1 << number for number in automata)
        except TooAmbiguousError:
            too_large = group
        self._work += simulation.work
        if self._work > MAX_WORK:
            raise GrammarError(_TOO_AMBIGUOUS)
        if too_large:  # assume the worst of them
            yield Crossing(group, too_large, _ALL_BYTES)

    def _first_bytes(self, lexeme: Expression) -> int:
        automaton = self._automaton(lexeme)
        if automaton is None:
            return _ALL_BYTES
        found = 0
        for state in automaton.closure(START):
            for ranges, _ in automaton.steps[state]:
                found |= code_points.lead_bytes(ranges)
        return found

    def _automaton(self, lexeme: Expression) -> Automaton | None:
        """The automaton of a lexeme; None if it is too large."""
        if lexeme not in self._automata:
            try:
                self._automata[lexeme] = Automaton(lexeme, self._rules)
            except TooLargeError:
                self._automata[lexeme] = None
        return self._automata[lexeme]


class _Neighbours:
    """The lexemes that begin a text and those that follow each: FIRST and FOLLOW."""

    def __init__(self, productions: Productions) -> None:
        self._productions = productions
        self._numbers: dict[Expression, int] = {}
        for symbol in productions.symbols():
            item = symbol.item if isinstance(symbol, Loop) else symbol
            if isinstance(item, Lexeme):
                self._numbers.setdefault(item.expression, len(self._numbers))
        self.lexemes = list(self._numbers)
        if len(self.lexemes) > MAX_LEXEMES:
            raise GrammarError(f"too large: it needs more than {MAX_LEXEMES} terminals")
        self._first = dict.fromkeys(productions.rules, 0)
        self._nullable = dict.fromkeys(productions.rules, False)
        self._find_first()
        self.starting = self._first[productions.start]
        self.following = [0] * len(self.lexemes)
        """For each lexeme, those that may come right after it."""
        self._follow = dict.fromkeys(productions.rules, 0)
        self._find_following()

    def _begin(self, symbol: Symbol) -> tuple[int, bool]:
        """The lexemes that a symbol may begin with, and whether it may be empty."""
        if isinstance(symbol, Lexeme):
            return 1 << self._numbers[symbol.expression], False
        if isinstance(symbol, Rule):
            return self._first[symbol.expression], self._nullable[symbol.expression]
        first, nullable = self._begin(symbol.item)
        return first, nullable or symbol.low == 0

    def _find_first(self) -> None:
        changed = True
        while changed:
            changed = False
            for node, alternatives in reversed(self._productions.rules.items()):
                before = self._first[node], self._nullable[node]
                for symbols in alternatives:
                    nullable = True
                    for symbol in symbols:
                        first, nullable = self._begin(symbol)
                        self._first[node] |= first
                        if not nullable:
                            break
                    self._nullable[node] |= nullable
                changed |= before != (self._first[node], self._nullable[node])

    def _find_following(self) -> None:
        changed = True
        while changed:
            changed = False
            for node, alternatives in self._productions.rules.items():
                for symbols in alternatives:
                    after = self._follow[node]
                    for symbol in reversed(symbols):
                        changed |= self._add_following(symbol, after)
                        first, nullable = self._begin(symbol)
                        after = first | (after if nullable else 0)

    def _add_following(self, symbol: Symbol, after: int) -> bool:
        """Add what comes after a symbol. Returns whether anything was new."""
        if isinstance(symbol, Loop):
            if symbol.high != 1:
                after |= self._begin(symbol.item)[0]
            symbol = symbol.item
        if isinstance(symbol, Rule):
            grows = bool(after & ~self._follow[symbol.expression])
            self._follow[symbol.expression] |= after
        else:
            number = self._numbers[symbol.expression]
            grows = bool(after & ~self.following[number])
            self.following[number] |= after
        return grows


def _is_character(lexeme: Expression) -> bool:
    """Whether a lexeme is a single character, which cannot be split."""
    return isinstance(lexeme, Characters) or (isinstance(lexeme, Literal) and len(lexeme.text) == 1)


def _numbers(bits: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def _union(sets: list[int], bits: int) -> int:
    """The union of the sets with these numbers."""
    found = 0
    for number in _numbers(bits):
        found |= sets[number]
    return found
