"""Lexemes that are safe in llguidance. EBNF has no lexer; llguidance has one.

At each position, the lexer tries all lexemes that the parser allows. It reads on as long as any of
them can match more, and never backtracks to the end of an earlier match. So `[a-z]* "end"` as two
lexemes never matches: the first lexeme consumes the `end`. Lexemes are safe if this loses no text.
Take a lexeme T, and a lexeme U that is allowed at the same position. After a word of T, U must not
continue with a byte that can also begin what follows T. If one can, U is split by one level, and so
on down to single characters, which are always safe.

The analysis covers all texts at once. Sets of lexemes and of bytes are integers with a bit for each
member.
"""

from collections.abc import Iterator, Mapping

from completions.grammars.ebnf.automata import (
    START,
    Crossing,
    LexemeNfa,
    Simulation,
    TooAmbiguousError,
)
from completions.grammars.ebnf.expressions import (
    Characters,
    Expression,
    Expressions,
    Literal,
    NonEmpty,
    Tokens,
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
from completions.grammars.exceptions import GrammarError
from completions.regular import code_points
from completions.regular.nfa import TooLargeError

MAX_ROUNDS = 500
MAX_LEXEMES = 20_000
MAX_WORK = 2_000_000
"""The most states visited in all simulations of one grammar: a few seconds of work."""
_TEXT_OR_ID = (
    "text and a token by id can be the same token here; begin the text with a character that none "
    "of the tokens begins with, or put a special token between them"
)
_ALL_BYTES = (1 << 256) - 1
_TOO_AMBIGUOUS = "too ambiguous: many levels can be read in several ways; make the rules distinct"


def make_safe_productions(
    make: Expressions, rules: dict[str, Expression], start: Expression, facts: Facts
) -> Productions:
    """Return productions with safe lexemes. May add rules. Raises GrammarError if that takes too
    much work."""
    split: set[Expression] = set()
    checker = _Checker(rules)
    for _ in range(MAX_ROUNDS):
        productions = ProductionBuilder(make, rules, facts, split).lower(start)
        unsafe = checker.find_unsafe(productions)
        if not unsafe:
            return productions
        split |= unsafe
    raise GrammarError(_TOO_AMBIGUOUS)


class _Checker:
    """Finder of unsafe lexemes. Keeps automata from round to round."""

    def __init__(self, rules: Mapping[str, Expression]) -> None:
        self._rules = rules
        self._automata: dict[Expression, LexemeNfa | None] = {}
        self._work = 0

    def find_unsafe(self, productions: Productions) -> set[Expression]:
        """Return the lexemes to split."""
        neighbours = _Neighbours(productions)
        clashes = _TokenClashes(neighbours)
        if not any(neighbours.following) and not clashes.tokens:
            return set()
        first_bytes = [self._find_first_bytes(lexeme) for lexeme in neighbours.lexemes]
        next_bytes = [_merge(first_bytes, bits) for bits in neighbours.following]
        unsafe = 0
        checked: list[int] = []
        todo = [neighbours.starting]
        while todo:
            group = todo.pop()
            if any(group & ~larger == 0 for larger in checked):
                continue
            checked.append(group)
            clashes.check_beginnings(group, first_bytes)
            for whole, going_on, lead_bytes in self._find_crossings(neighbours, group):
                # The parser may take any of the lexemes that match, so all lexemes that follow one
                # of them may be allowed together.
                todo.append(_merge(neighbours.following, whole))
                if _merge(next_bytes, whole) & lead_bytes:
                    unsafe |= going_on
                clashes.check_crossing(whole, going_on, lead_bytes)
        lexemes = {neighbours.lexemes[number] for number in _iter_numbers(unsafe)}
        lexemes = {each for each in lexemes if not _is_character(each)}
        # A lexeme without its empty text is split together with its body.
        return lexemes | {each.body for each in lexemes if isinstance(each, NonEmpty)}

    def _find_crossings(self, neighbours: "_Neighbours", group: int) -> Iterator[Crossing]:
        automata = {}
        for number in _iter_numbers(group):
            automaton = self._build_automaton(neighbours.lexemes[number])
            if automaton is not None:
                automata[number] = automaton
        simulation = Simulation(automata)
        try:
            yield from simulation.iter_crossings()
            too_large = group & ~sum(1 << number for number in automata)
        except TooAmbiguousError:
            too_large = group
        self._work += simulation.work
        if self._work > MAX_WORK:
            raise GrammarError(_TOO_AMBIGUOUS)
        if too_large:  # assume the worst about them
            yield Crossing(group, too_large, _ALL_BYTES)

    def _find_first_bytes(self, lexeme: Expression) -> int:
        automaton = self._build_automaton(lexeme)
        if automaton is None:
            return _ALL_BYTES
        bits = 0
        for state in automaton.list_active(START):
            for ranges, _ in automaton.steps[state]:
                bits |= code_points.find_lead_bytes(ranges)
        return bits

    def _build_automaton(self, lexeme: Expression) -> LexemeNfa | None:
        """Return the automaton of a lexeme; None if it is too large."""
        if lexeme not in self._automata:
            try:
                self._automata[lexeme] = LexemeNfa(lexeme, self._rules)
            except TooLargeError:
                self._automata[lexeme] = None
        return self._automata[lexeme]


class _Neighbours:
    """The lexemes that begin a text and those that follow each: FIRST and FOLLOW."""

    def __init__(self, productions: Productions) -> None:
        self._productions = productions
        self._numbers: dict[Expression, int] = {}
        for symbol in productions.iter_symbols():
            item = symbol.item if isinstance(symbol, Loop) else symbol
            if isinstance(item, Lexeme):
                self._numbers.setdefault(item.expression, len(self._numbers))
        self.lexemes = list(self._numbers)
        if len(self.lexemes) > MAX_LEXEMES:
            raise GrammarError(
                f"too large: it needs more than {MAX_LEXEMES} terminals; use fewer texts"
            )
        self._first = dict.fromkeys(productions.rules, 0)
        self._nullable = dict.fromkeys(productions.rules, False)
        self._find_first()
        self.starting = self._first[productions.start]
        self.following = [0] * len(self.lexemes)
        """For each lexeme, which lexemes may come right after it."""
        self._follow = dict.fromkeys(productions.rules, 0)
        end = 1 << len(self.lexemes)
        self._follow[productions.start] = end
        self._find_following()
        self.last = [bool(each & end) for each in self.following]
        """For each lexeme, whether the text may end right after it."""
        self.following = [each & ~end for each in self.following]

    def _begin(self, symbol: Symbol) -> tuple[int, bool]:
        """Return the lexemes that a symbol may begin with, and whether it may be empty."""
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


class _TokenClashes:
    """Refuses grammars in which text and a token by id can be the same token of the model.

    XGrammar follows both readings, llguidance only the token by id.
    """

    def __init__(self, neighbours: _Neighbours) -> None:
        self._neighbours = neighbours
        self._by_number = {
            number: lexeme
            for number, lexeme in enumerate(neighbours.lexemes)
            if isinstance(lexeme, Tokens)
        }
        self.tokens = sum(1 << number for number in self._by_number)
        """The lexemes that are tokens by id."""

    def check_beginnings(self, group: int, first_bytes: list[int]) -> None:
        """Raise GrammarError if text of a group may begin like one of the tokens in that group."""
        leads = self._find_leads(group & self.tokens)
        if leads & _merge(first_bytes, group & ~self.tokens):
            raise GrammarError(_TEXT_OR_ID)

    def check_crossing(self, whole: int, going_on: int, lead_bytes: int) -> None:
        """Raise GrammarError if text may continue like one of the tokens that may follow it.

        No text is lost where repeated tokens of any text follow a lexeme that could continue: they
        also allow whatever the lexeme could still consume and whatever may follow it.
        """
        after = _merge(self._neighbours.following, whole) & self.tokens
        clashing = [
            number
            for number in _iter_numbers(after)
            if self._by_number[number].lead_bytes & lead_bytes
        ]
        if not clashing:
            return
        if going_on & ~whole:
            raise GrammarError(_TEXT_OR_ID)
        for lexeme in _iter_numbers(going_on):
            if not all(self._can_absorb(number, lexeme) for number in clashing):
                raise GrammarError(_TEXT_OR_ID)

    def _can_absorb(self, number: int, lexeme: int) -> bool:
        following = self._neighbours.following
        return (
            self._by_number[number].is_any_text
            and bool(following[number] >> number & 1)
            and not following[lexeme] & ~following[number]
            and (self._neighbours.last[number] or not self._neighbours.last[lexeme])
        )

    def _find_leads(self, tokens: int) -> int:
        leads = 0
        for number in _iter_numbers(tokens):
            leads |= self._by_number[number].lead_bytes
        return leads


def _is_character(lexeme: Expression) -> bool:
    """Return whether a lexeme is a single character, which cannot be split."""
    return isinstance(lexeme, Characters) or (isinstance(lexeme, Literal) and len(lexeme.text) == 1)


def _iter_numbers(bits: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def _merge(sets: list[int], bits: int) -> int:
    """Return the union of the sets with these numbers."""
    union = 0
    for number in _iter_numbers(bits):
        union |= sets[number]
    return union
