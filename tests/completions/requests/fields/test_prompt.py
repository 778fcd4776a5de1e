"""Every row of the contract's table of prompts, and arbitrary values."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.exceptions import FieldError
from completions.requests.fields.prompt import MAX_PROMPTS, parse_prompt

VOCABULARY = 100


@pytest.mark.parametrize(
    ("prompt", "batch"),
    [
        ([97], [[97]]),
        ([0], [[0]]),
        ([99], [[99]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ([[0]], [[0]]),
        ([[1]] * MAX_PROMPTS, [[1]] * MAX_PROMPTS),
    ],
)
def test_every_form_of_prompt_becomes_a_batch(prompt: Any, batch: list[list[int]]) -> None:
    assert parse_prompt(prompt, VOCABULARY) == batch


@pytest.mark.parametrize(
    ("prompt", "code", "path"),
    [
        ("[]", "empty_array", ""),
        ("[[]]", "empty_array", "[0]"),
        ("[[1],[]]", "empty_array", "[1]"),
        ('"hello"', "text_prompt_not_supported", ""),
        ('["hello"]', "text_prompt_not_supported", ""),
        ('["1"]', "text_prompt_not_supported", "[0]"),
        ('["a","2"]', "text_prompt_not_supported", "[1]"),
        ('[1,"2"]', "mixed_prompt", "[1]"),
        ('[1,"hello"]', "mixed_prompt", "[1]"),
        ('[[1],"a"]', "mixed_prompt", "[1]"),
        ("[[1],2]", "mixed_prompt", "[1]"),
        ("[1,[2]]", "mixed_prompt", "[1]"),
        ('["a",1]', "mixed_prompt", "[1]"),
        ('[[1,"2"]]', "mixed_prompt", "[0][1]"),
        ("[true]", "invalid_type", "[0]"),
        ("[1,false]", "invalid_type", "[1]"),
        ("[[1,false]]", "invalid_type", "[0][1]"),
        ("[1.0]", "invalid_type", "[0]"),
        ("[1e3]", "invalid_type", "[0]"),
        ("[1.5]", "invalid_type", "[0]"),
        ("[null]", "invalid_type", "[0]"),
        ("[{}]", "invalid_type", "[0]"),
        ('["a",null]', "invalid_type", "[1]"),
        ("[[1],null]", "invalid_type", "[1]"),
        ("{}", "invalid_type", ""),
        ("9703", "invalid_type", ""),
        ("true", "invalid_type", ""),
        ("[-1]", "invalid_token_id", "[0]"),
        ("[[1],[2,-1]]", "invalid_token_id", "[1][1]"),
        ("[1,2,3,100]", "invalid_token_id", "[3]"),
        ("[9223372036854775808]", "invalid_token_id", "[0]"),
        ("[" + "9" * 4000 + "]", "invalid_token_id", "[0]"),
        ("[[[1]]]", "invalid_type", "[0][0]"),
        (json.dumps([[1]] * (MAX_PROMPTS + 1)), "array_above_max_length", ""),
        ("[1,true,-1]", "invalid_type", "[1]"),  # only the first offender
    ],
)
def test_a_bad_prompt_is_refused_by_code_and_path(prompt: str, code: str, path: str) -> None:
    with pytest.raises(FieldError) as caught:
        parse_prompt(json.loads(prompt), VOCABULARY)
    assert (caught.value.code, caught.value.path) == (code, path)


def test_message_names_id_and_limit() -> None:
    with pytest.raises(FieldError, match=r"token id 100 is outside the vocabulary \(0-99\)"):
        parse_prompt([1, 100], VOCABULARY)


scalars = st.none() | st.booleans() | st.integers(-2, 120) | st.floats() | st.text(max_size=3)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4), max_leaves=12)


@given(values)
def test_any_value_is_a_batch_of_ids_or_a_field_error(value: Any) -> None:
    try:
        batch = parse_prompt(value, VOCABULARY)
    except FieldError:
        return
    assert batch
    assert all(batch)
    assert all(type(token) is int and 0 <= token < VOCABULARY for ids in batch for token in ids)
