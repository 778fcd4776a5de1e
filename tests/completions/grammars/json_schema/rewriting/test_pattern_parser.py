"""What the parser of patterns reads from private modules of the standard library."""

import re
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]

import pytest

from completions.grammars.json_schema.rewriting import pattern_parser

LITERAL, A, B = codes.LITERAL, ord("a"), ord("b")


@pytest.mark.parametrize(
    ("pattern", "tree"),
    [
        ("a", [(LITERAL, A)]),
        ("[^a]", [(codes.NOT_LITERAL, A)]),
        (".", [(codes.ANY, None)]),
        ("^$", [(codes.AT, codes.AT_BEGINNING), (codes.AT, codes.AT_END)]),
        ("[ab]", [(codes.IN, [(LITERAL, A), (LITERAL, B)])]),
        ("[^a-b]", [(codes.IN, [(codes.NEGATE, None), (codes.RANGE, (A, B))])]),
        (r"\d\W", [(codes.IN, [(codes.CATEGORY, codes.CATEGORY_DIGIT)]),
                   (codes.IN, [(codes.CATEGORY, codes.CATEGORY_NOT_WORD)])]),
        ("a{2,3}", [(codes.MAX_REPEAT, (2, 3, [(LITERAL, A)]))]),
        ("a*?", [(codes.MIN_REPEAT, (0, codes.MAXREPEAT, [(LITERAL, A)]))]),
        ("(a)(?:ab|b.)", [(codes.SUBPATTERN, (1, 0, 0, [(LITERAL, A)])),
                          (codes.BRANCH, (None, [[(LITERAL, A), (LITERAL, B)],
                                                 [(LITERAL, B), (codes.ANY, None)]]))]),
    ],
)  # fmt: skip
def test_the_trees_have_the_form_that_is_read(pattern: str, tree: list[object]) -> None:
    assert plain(parser.parse(pattern)) == tree


def plain(tree: object) -> object:
    """A tree with its sequences as lists, since they know no equality."""
    if isinstance(tree, parser.SubPattern | list):
        return [plain(each) for each in tree]
    return tuple(map(plain, tree)) if isinstance(tree, tuple) else tree


def test_categories_have_the_names_that_are_read() -> None:
    names = {str(each) for each in (codes.CATEGORY_SPACE, codes.CATEGORY_NOT_DIGIT)}
    assert names == {"CATEGORY_SPACE", "CATEGORY_NOT_DIGIT"}


@pytest.mark.parametrize("pattern", ["(", "a**", "[b-a]"])
def test_what_re_refuses_is_unreadable(pattern: str) -> None:
    with pytest.raises(re.error):
        parser.parse(pattern)
    with pytest.raises(pattern_parser.UnreadablePatternError):
        pattern_parser.network(pattern)
