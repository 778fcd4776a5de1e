"""The playground offers every field of both routes that has an effect, once."""

import json
from itertools import chain
from typing import Any

import pytest

from completions.console.drafts import make_draft
from completions.console.parameters import (
    CHAT,
    ELSEWHERE,
    FIRST,
    PLAIN,
    ROUTES,
    WITHOUT_EFFECT,
    Parameter,
    list_parameters,
    write_value,
)

OFFERED = [*chain.from_iterable(list_parameters().values())]
BODY: dict[str, Any] = {
    "model": "tiny:polite",
    "prompt": [[1, 2], [3]],
    "max_tokens": 7,
    "temperature": 0.25,
    "seed": 2**63 - 1,
    "stop": ["\n", "123"],
    "suffix": "123",
    "logit_bias": {"5": 1.5},
    "ignore_eos": True,
    "logprobs": 3,
    "priority": -3,
    "json_schema": {"type": "object"},
}


@pytest.mark.parametrize("route", ROUTES)
def test_every_field_is_offered_once(route: str) -> None:
    names = [each.name for each in OFFERED if route in each.routes]
    expected = set(ROUTES[route].fields) - ELSEWHERE - WITHOUT_EFFECT[route]
    assert sorted(names) == sorted(expected)


def test_inputs_have_names_of_their_own() -> None:
    keys = [each.key for each in OFFERED]
    assert len(set(keys)) == len(keys)
    assert {key for key in keys if "logprobs" in key.split(":")} == {
        f"{CHAT}:logprobs",
        f"{PLAIN}:logprobs",
    }
    assert [each.name for each in list_parameters()[""]] == sorted(FIRST, key=keys.index)
    assert all(each.help for each in OFFERED)


def find(name: str, route: str = PLAIN) -> Parameter:
    return next(each for each in OFFERED if each.name == name and route in each.routes)


def test_kinds_of_inputs() -> None:
    assert find("ignore_eos").choices == ["true", "false"]
    assert find("json_whitespace").reads == "text"
    assert (find("stop").reads, find("stop_token_ids").reads) == ("either", "json")
    assert find("temperature").bounds == {"step": "any", "min": 0.0, "max": 2.0}
    assert find("tools", CHAT).routes == [CHAT]


def read(parameter: Parameter, text: str) -> object:
    """As the page reads an input."""
    if parameter.reads == "text":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def test_a_draft_has_all_of_a_body() -> None:
    draft = make_draft(BODY, 3)
    (side,) = draft.sides
    own = [each for each in OFFERED if each.key in draft.values]
    carried = {each.name: read(each, draft.values[each.key]) for each in own}
    carried |= {"model": side.model, "prompt": json.loads(draft.prompts["tokens"])}
    carried[side.kind] = json.loads(side.texts[side.kind])
    assert carried == BODY
    assert (draft.key, draft.mode) == ("3", "tokens")


@pytest.mark.parametrize("value", ["123", "a", ["a"], True, None, 2**63 - 1, 0.1])
def test_a_value_is_read_as_it_was(value: object) -> None:
    parameter = find("stop")
    assert read(parameter, write_value(parameter, value)) == value
