"""Any text is a grammar or refused with its place, and a grammar keeps its language."""

import random

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from completions.grammars import ebnf
from completions.grammars.compiler import DEFAULT_COMPILER
from completions.grammars.exceptions import GrammarError
from tests.completions.grammars.byte_matcher import accepts
from tests.completions.grammars.ebnf.random_grammars import random_grammar, random_text
from tests.completions.grammars.ebnf.recogniser import Recogniser

pieces = st.sampled_from(
    [
        "root",
        "a",
        "b",
        " ",
        "::=",
        "|",
        "\n",
        '"x"',
        '"',
        "[",
        "]",
        "[a-z]",
        "[^]",
        "[]",
        "(",
        ")",
        "(=",
        "*",
        "+",
        "?",
        "{2}",
        "{",
        "}",
        "{2,1}",
        ",",
        "=",
        "#",
        "\\",
        '"\\x4"',
        ".",
        "start:",
        "é",
        "\x00",
        "\r",
        'Regex("',
        '")',
        "Regex(",
        "TagDispatch((",
        "Substring(",
        "Token(1)",
        "true",
        "12",
    ],
)


def refusal(grammar: str) -> GrammarError | None:
    try:
        assert ebnf.translate(grammar)
    except GrammarError as error:
        return error
    return None


@given(st.text(max_size=30) | st.lists(pieces, max_size=20).map("".join))
def test_any_text_is_translated_or_refused_with_its_place(text: str) -> None:
    for grammar in (text, f'root ::= {text}\na ::= "y"'):
        error = refusal(grammar)
        if error is not None and "no rule named root" not in error.message:
            lines = grammar.split("\n")
            assert error.line is not None
            assert error.column is not None
            assert 1 <= error.line <= len(lines)
            assert 1 <= error.column <= len(lines[error.line - 1]) + 1


@given(st.lists(st.sampled_from("ab|()[]^-\\*+?{}1,.$dwsxn:<é"), max_size=12).map("".join))
def test_any_pattern_is_translated_or_refused_inside_its_quotes(pattern: str) -> None:
    written = pattern.replace("\\", "\\\\")
    error = refusal(f'root ::= Regex("{written}")')
    if error is not None:
        assert error.line == 1
        assert error.column is not None
        assert error.column >= len('root ::= Regex("')


@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(st.randoms(use_true_random=False))
def test_a_grammar_keeps_its_language(rng: random.Random) -> None:
    text = random_grammar(rng)
    try:
        lark = ebnf.translate(text)
    except GrammarError as error:
        # Rare ones exceed the work of the search for safe lexemes. Which ones may change with it.
        assume("can never end" not in error.message and "too ambiguous" not in error.message)
        raise
    grammar = ebnf.parse(text, DEFAULT_COMPILER)
    for _ in range(8):
        sample = random_text(rng)
        assert accepts(lark, sample) == Recogniser(grammar, sample).accepts(), sample


_STARS = ('"a"*', '" "*', "[ab]*", '("a" | "b")*', '"ab"*', '"c"*')
_PARTS = ('"a"', '"b"', "[ab]", '"a"?', '"c" root', 'root "c"', '"(" root ")"', '"ab"')
_ENDS = (*_PARTS[:4], '"(" root ")"', '""', '"c"', 'ws "c"')


@given(st.randoms(use_true_random=False))
def test_recursion_behind_a_star_keeps_its_language(rng: random.Random) -> None:
    options = [f"ws root {rng.choice(_PARTS)}", f"ws ws root {rng.choice(_PARTS)}"]
    options = [*options[: rng.randint(1, 2)], rng.choice(_ENDS), rng.choice(_ENDS)]
    if rng.random() < 0.5:
        options.append(f"root {rng.choice(_PARTS)}")
    text = f"root ::= {' | '.join(options)}\nws ::= {rng.choice(_STARS)}"
    lark = ebnf.translate(text)
    grammar = ebnf.parse(text, DEFAULT_COMPILER)
    for _ in range(8):
        sample = "".join(rng.choices("abc ()", k=rng.randint(0, 6)))
        assert accepts(lark, sample) == Recogniser(grammar, sample).accepts(), sample
