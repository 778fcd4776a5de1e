import pytest

from completions.grammars.ebnf.automata import Crossing, LexemeNfa, Simulation, TooAmbiguousError
from completions.grammars.ebnf.expressions import Expressions


def test_crossings_of_a_word_and_letters() -> None:
    make = Expressions()
    letters = make.make_repeat(make.make_characters(((0x61, 0x7A),)), 1, None)
    automata = {0: LexemeNfa(make.make_literal("if"), {}), 1: LexemeNfa(letters, {})}
    found = list(Simulation(automata).iter_crossings())
    assert Crossing(0b11, 0, 0) in found  # both match "if"
    lower = sum(1 << byte for byte in b"abcdefghijklmnopqrstuvwxyz")
    assert Crossing(0b11, 0b10, lower) in found  # only the letters go on from there


def test_an_explosion_is_given_up() -> None:
    make = Expressions()
    maybe = make.make_repeat(make.make_literal("a"), 0, 1)
    automaton = LexemeNfa(make.make_concatenation([maybe] * 1000), {})
    with pytest.raises(TooAmbiguousError):
        list(Simulation({0: automaton}).iter_crossings())
