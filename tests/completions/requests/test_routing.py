"""Where a request goes: its model, adapters, priority and ids."""

import dataclasses
from typing import Any

import pytest

from completions.exceptions import APIError
from tests.completions.requests.validating import ANYONE, LEAST, refusal, validate

pytestmark = pytest.mark.usefixtures("served")


@pytest.mark.parametrize("given", [{}, {"model": None}, {"model": "default"}])
def test_the_only_model_needs_no_name(given: dict[str, Any]) -> None:
    body = {"prompt": [1, 2], **given}
    only = dataclasses.replace(ANYONE, allowed_models=("tiny",))
    assert validate(body, only).model.name == "tiny"
    code = "invalid_value" if given.get("model") else "missing_required_parameter"
    with pytest.raises(APIError, match=r"tiny, .*org/slashed") as caught:
        validate(body)
    assert (caught.value.code, caught.value.param) == (code, "model")


def test_a_model_must_exist_and_be_allowed() -> None:
    allowed = dataclasses.replace(ANYONE, allowed_models=("org/slashed",))
    assert validate({**LEAST, "model": "org/slashed"}, allowed).model.name == "org/slashed"
    assert refusal(LEAST, allowed) == ("permission_denied", "model")
    assert refusal({**LEAST, "model": "none"}) == ("model_not_found", "model")


def test_a_model_id_may_name_an_adapter() -> None:
    request = validate({**LEAST, "model": "tiny:polite", "prompt": [[1], [2]]})
    assert (request.model.name, request.model.entry.id) == ("tiny:polite", "tiny")
    assert request.job.adapters == ("polite", "polite")
    assert refusal({**LEAST, "model": "tiny:rude"}) == ("adapter_not_found", "model")
    assert refusal({**LEAST, "model": "none:polite"}) == ("model_not_found", "model")
    allowed = dataclasses.replace(ANYONE, allowed_models=("tiny",))
    assert validate({**LEAST, "model": "tiny:polite"}, allowed)
    only = dataclasses.replace(ANYONE, allowed_models=("tiny:polite",))
    assert validate({**LEAST, "model": "tiny:polite"}, only)
    assert refusal(LEAST, only) == ("permission_denied", "model")


def test_a_registered_adapter_is_named_by_its_version() -> None:
    registered = {"tiny": {"own": "own@1", "polite": "polite@2"}, "texts": {"own": "own@3"}}
    owner = dataclasses.replace(ANYONE, adapters=registered)
    request = validate({**LEAST, "model": "tiny:own"}, owner)
    assert (request.model.adapter, request.job.adapters) == ("own", ("own@1",))
    body = {**LEAST, "prompt": [[1], [2]], "lora_path": ["own", "polite"]}
    assert validate(body, owner).job.adapters == ("own@1", "polite"), "models.toml comes first"
    assert refusal({**LEAST, "model": "own"}, owner) == ("model_not_found", "model")
    assert refusal({**LEAST, "adapter": "own@1"}, owner) == ("adapter_not_found", "adapter")
    assert refusal({**LEAST, "adapter": "own"}) == ("adapter_not_found", "adapter")


def test_the_name_of_an_adapter_alone_names_its_only_model() -> None:
    request = validate({**LEAST, "model": "polite"})
    assert (request.model.name, request.model.entry.id) == ("polite", "tiny")
    assert request.job.adapters == ("polite",)
    only = dataclasses.replace(ANYONE, allowed_models=("tiny:polite",))
    assert validate({**LEAST, "model": "polite"}, only)
    other = dataclasses.replace(ANYONE, allowed_models=("texts",))
    assert refusal({**LEAST, "model": "polite"}, other) == ("model_not_found", "model")


def test_an_adapter_is_named_by_any_of_three_fields() -> None:
    two = {**LEAST, "prompt": [[1], [2]]}
    for fields in ({"lora_path": "polite"}, {"adapter": "polite"}, {"lora_path": ["polite"] * 2}):
        assert validate({**two, **fields}).job.adapters == ("polite", "polite")
    assert validate({**two, "lora_path": ["polite", None]}).job.adapters == ("polite", None)
    body = {**two, "model": "tiny:polite", "lora_path": ["polite", None]}
    assert refusal(body) == ("invalid_value", "lora_path")
    assert validate({**body, "lora_path": "polite"}).job.adapters == ("polite", "polite")


def test_a_key_may_have_a_maximum_priority() -> None:
    hasty = dataclasses.replace(ANYONE, max_priority=5)
    assert validate({**LEAST, "priority": 5}, hasty).job.priority == 5
    assert refusal({**LEAST, "priority": 6}, hasty) == ("permission_denied", "priority")


def test_rids_are_one_per_prompt_and_differ() -> None:
    two = {**LEAST, "prompt": [[1], [2]]}
    assert validate({**two, "rid": "a"})
    assert validate({**two, "rid": ["a", "b"]})
    assert refusal({**two, "rid": ["a", "a"]}) == ("invalid_value", "rid[1]")
