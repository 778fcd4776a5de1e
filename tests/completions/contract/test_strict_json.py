import json
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.contract import strict_json
from completions.contract.strict_json import (
    StrictJSONError,
    encode_line,
    escape_line_breaks,
    loads,
)
from tests.operations import counted_operations

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_reads_what_json_writes(value: Any) -> None:
    assert loads(json.dumps(value)) == value


@given(json_values | st.lists(st.integers(-5, 50_000)))
def test_long_texts_are_read_alike(value: Any) -> None:
    text = json.dumps(value)
    with patch.multiple(strict_json, _LONG=0, _BRACKETS_BATCH_SIZE=3):
        read = loads(text)
    assert repr(read) == repr(loads(text))


@given(st.text())
def test_any_text_is_a_value_or_a_strict_error(text: str) -> None:
    with suppress(StrictJSONError):
        loads(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a":1,"a":2}', "the key 'a' appears twice in one object"),
        ('{"x":{"b":1,"c":1,"b":2}}', "the key 'b' appears twice in one object"),
        ('{"a": "x', "Unterminated string starting at line 1, column 7"),
        ('{"a": "\n"}', "Invalid control character at line 1, column 8"),
        ("[1,\n2 3]", "Expecting ',' delimiter at line 2, column 3"),
        ('{"a":NaN}', "NaN is not JSON"),
        ('{"a":-Infinity}', "-Infinity is not JSON"),
        ("9" * 4301, "an integer has too many digits"),
        ("[" * 5000 + "]" * 5000, "it is nested too deeply"),
        ('{"a":[' * 100 + "[]" + "]}" * 100, "it is nested too deeply; flatten it to 200 levels"),
        (r'"\ud800"', r"a \u escape is half of a surrogate pair"),
        ("[1,\n 2,]", "line 2, column"),
        ("", "line 1, column 1"),
        ("\ufeff{}", "line 1, column 1"),
    ],
)
def test_what_is_not_strict_json_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(StrictJSONError) as caught:
        loads(text)
    assert reason in str(caught.value)


def test_whole_surrogate_pairs_are_one_character() -> None:
    assert loads(r'"\ud83d\ude00"') == "\U0001f600"


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200 + "]" * 200,
        '{"a":' * 200 + "1" + "}" * 200,
        "[" + ",".join(["[]"] * 300) + "]",
        json.dumps(["[" * 300, '"' + "{" * 300, "\\" + "[" * 300, "\n[" * 300]),
    ],
)
def test_brackets_inside_texts_and_beside_one_another_are_no_depth(text: str) -> None:
    assert loads(text) == json.loads(text)
    with patch.object(strict_json, "_BRACKETS_BATCH_SIZE", 3):
        assert loads(text) == json.loads(text)


def test_megabytes_are_measured_without_a_loop_in_python() -> None:
    for text in ('"' + r"\"" * 500_000 + '"', "[" + '"a[",' * 200_000 + '""]'):
        with counted_operations() as operations:
            loads(f"[{'[],' * 300}{text}]")
        assert operations.count < 100


CUTTING = [chr(code) for code in range(0x3000) if len(f"a{chr(code)}b".splitlines()) > 1]
"""Every character at which Python ends a line."""


@pytest.mark.parametrize("character", CUTTING, ids=ascii)
def test_no_character_ends_the_line(character):
    value = {f"n{character}": [f"a{character}b", {"é": character * 3}]}
    text = encode_line(value)
    assert len(text.decode().splitlines()) == 1
    assert json.loads(text) == value


def test_all_other_text_stays_as_orjson_writes_it():
    value = {
        "text": "".join(map(chr, range(0x80, 0x3000))).translate(dict.fromkeys(map(ord, CUTTING)))
    }
    assert encode_line(value) == orjson.dumps(value)


def test_an_escaped_character_is_not_escaped_twice():
    text = rb'{"a":"\\u2028 \u2028"}'
    assert escape_line_breaks(text) == text
