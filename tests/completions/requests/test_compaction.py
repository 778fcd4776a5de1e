"""Bodies of POST /v1/responses/compact, and the items that it returned in later ones."""

from typing import Any

import pytest

from completions.exceptions import APIError
from completions.requests import compaction
from completions.requests.compaction import ORDER, CompactRequestObject
from completions.requests.context import Earlier
from completions.requests.generation import GenerationRequest
from completions.responses.compaction import seal
from tests.completions.requests import test_response
from tests.completions.requests.test_response import KEY, message, prompt

pytestmark = pytest.mark.usefixtures("chat_models")


def read(body: dict[str, Any], *earlier: Any) -> GenerationRequest:
    body = {"model": "caller", "input": "Hi", **body}
    request: GenerationRequest = CompactRequestObject().validate_for(body, KEY, Earlier(earlier))
    return request


def sealed(text: str, owner: int = KEY.organization_id) -> dict[str, Any]:
    content = seal([message("user", "Sum up."), message("assistant", text)], owner)
    return {"type": "compaction", "id": "cmp_1", "encrypted_content": content}


def test_the_model_is_told_to_sum_up() -> None:
    request = read({"instructions": "Be exact."}, message("user", "a"), message("assistant", "b"))
    assert prompt(request) == f"Be exact.abHi\n\n{ORDER}|"
    ended = read({"input": [message("user", "a"), message("assistant", "b")]})
    assert prompt(ended) == f"ab{ORDER}|"
    assert request.response is not None
    assert not request.response.store


def test_a_summary_is_shorter_than_its_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "LEAST", 4)
    request = read({"input": "a" * 100})
    sampling = request.job.sampling
    assert sampling.max_tokens == request.job.prompt_tokens // compaction.SHARE
    assert sampling.temperature == 0
    monkeypatch.setattr(compaction, "MOST", 5)
    assert read({"input": "a" * 100}).job.sampling.max_tokens == 5


def test_messages_of_the_system_stay() -> None:
    given = [message("system", "s"), message("user", "a"), message("developer", "d")]
    response = read({"input": given}, {"id": "msg_1", **message("system", "e")}).response
    assert response is not None
    kept: Any = response.shown["kept"]
    assert [item["content"][0]["text"] for item in kept] == ["e", "s", "d"]
    assert all(item.keys() == {"type", "status", "role", "content"} for item in kept[1:])
    assert "id" not in kept[0]


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"model": None}, "missing_required_parameter", "model"),
        ({"model": "other"}, "model_not_found", "model"),
        ({"model": 1}, "invalid_type", "model"),
        ({"input": None}, "missing_required_parameter", "input"),
        ({"input": 1}, "invalid_type", "input"),
        ({"input": [{"type": "computer_call"}]}, "unsupported_value", "input[0].type"),
        ({"instructions": 1}, "invalid_type", "instructions"),
        ({"stream": True}, "unsupported_parameter", "stream"),
        ({"tools": [test_response.TOOL]}, "unsupported_parameter", "tools"),
        ({"context_management": [{}]}, "unsupported_parameter", "context_management"),
        ({"inputs": "a"}, "unknown_parameter", "inputs"),
        ({"input": "a" * 5000}, "context_length_exceeded", "input"),
        ({"input": [{**sealed("a"), "encrypted_content": 1}]}, "invalid_type",
         "input[0].encrypted_content"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(body: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(APIError) as raised:
        read(body)
    assert (raised.value.code, raised.value.status_code in (400, 404)) == (code, True)
    shown = CompactRequestObject.rename_path(raised.value.param or "")
    assert shown == param


def test_parameters_without_effect_are_named() -> None:
    assert read({"prompt_cache_key": "a"}).ignored == ("prompt_cache_key",)


def test_a_compaction_stands_for_its_messages() -> None:
    for open_ in (test_response.read, read):
        text = prompt(open_({"input": [sealed("We launch."), message("user", "When?")]}))
        assert text.index("Sum up.") < text.index("We launch.") < text.index("When?")
        stored = prompt(open_({"previous_response_id": "resp_1"}, sealed("We launch.")))
        assert stored.index("We launch.") < stored.index("Hi")


@pytest.mark.parametrize("item", [sealed("a", 2), {"type": "compaction", "encrypted_content": "x"}])
def test_a_foreign_compaction_is_refused(item: dict[str, Any]) -> None:
    for body, earlier, param in (
        ({"input": [message("user", "a"), item]}, (), "input[1].encrypted_content"),
        ({"previous_response_id": "resp_1"}, (item,), "previous_response_id"),
        ({"conversation": "conv_1"}, (item,), "conversation"),
    ):
        with pytest.raises(APIError, match="not the content of a compaction") as raised:
            test_response.read(body, *earlier)
        assert (raised.value.code, raised.value.param) == ("invalid_value", param)
