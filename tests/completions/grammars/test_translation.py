"""Whatever a client sends is a grammar, or a GrammarError that names the field."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.grammars import Constraint, translate
from completions.grammars.exceptions import GrammarError

ebnf_pieces = st.sampled_from(
    [
        "root",
        "a",
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
        "(",
        ")",
        "*",
        "+",
        "?",
        "{2}",
        "{",
        "}",
        "{2,1}",
        "#",
        "\\",
        "\\x4",
        "&&",
        ".",
        "=",
        "start:",
        "é",
        "\x00",
    ],
)
regex_pieces = st.sampled_from(
    [
        "a",
        "(",
        ")",
        "[",
        "]",
        "*",
        "+",
        "?",
        "{2}",
        "{2,1}",
        "|",
        "\\",
        "/",
        "^",
        "$",
        "(?=",
        "(?i",
        "\\p{L}",
        "\\b",
        "\n",
        "é",
        "-",
        "&&",
        "\x00",
    ],
)
keywords = st.sampled_from(
    [
        "type",
        "properties",
        "items",
        "$ref",
        "anyOf",
        "oneOf",
        "allOf",
        "enum",
        "const",
        "required",
        "pattern",
        "minLength",
        "maximum",
        "multipleOf",
        "$defs",
        "not",
        "format",
        "prefixItems",
    ],
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["string", "object", "#", "#/$defs/a", "a", "[", "date", "\x00"])
)
schemas = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keywords, inner, max_size=3),
    max_leaves=12,
)


def check(field: str, value: Any) -> None:
    try:
        translated = translate(Constraint(field, value))
    except GrammarError as error:
        refused = error
    else:
        assert translated.grammar
        return
    assert refused.message
    assert str(refused).startswith(f"{field}: ")


@given(st.lists(ebnf_pieces, max_size=15).map("".join))
def test_any_ebnf(text: str) -> None:
    check("ebnf", text)
    check("ebnf", f'root ::= {text}\na ::= "y"')


@given(st.lists(regex_pieces, max_size=10).map("".join))
def test_any_regex(text: str) -> None:
    check("regex", text)


@given(st.dictionaries(keywords, schemas, max_size=4))
def test_any_schema(schema: dict[str, Any]) -> None:
    check("json_schema", schema)


@pytest.mark.parametrize("field", ["ebnf", "regex", "json_schema"])
def test_texts_are_bounded(field: str) -> None:
    with pytest.raises(GrammarError, match=f"{field}: longer than 262144 bytes"):
        translate(Constraint(field, '"' + "x" * 262_144 + '"'))
