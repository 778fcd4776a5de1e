"""JSON that readers of lines do not cut."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.contract.json_lines import (
    compress_lines,
    decompress_lines,
    encode_line,
    escape_line_breaks,
)

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


@given(st.lists(st.text(), min_size=1))
def test_compressing_loses_nothing(texts):
    documents = [encode_line({"text": text}) for text in texts]
    assert decompress_lines(compress_lines(documents)) == documents
    assert decompress_lines(memoryview(compress_lines(documents))) == documents
