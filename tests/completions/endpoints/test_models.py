import pytest
import redis
from django.test import Client

from completions.models import ApiKey
from tests.completions.conftest import TINY_CONTEXT, FakeProcess, Tenant


def test_listed_models(api: Client) -> None:
    body = api.get("/v1/models").json()
    assert body["object"] == "list"
    assert [model["id"] for model in body["data"]] == [
        "tiny",
        "texts",
        "org/slashed",
        "absent",
        "tiny:polite",
    ]
    tiny = body["data"][0]
    assert tiny["created"] > 1_700_000_000
    del tiny["created"], tiny["capabilities"]
    assert tiny == {
        "id": "tiny",
        "object": "model",
        "owned_by": "quire",
        "root": "tiny",
        "parent": None,
        "status": "loaded",
        "cold_start": False,
        "max_model_len": TINY_CONTEXT,
        "vocab_size": 260,
        "max_token_id": 259,
        "eos_token_ids": [257],
        "default_max_tokens": 16,
        "prices_per_million_tokens": {"prompt": 0.5, "cached_prompt": 0.5, "completion": 2.0},
        "chat_style": {
            "tool_format": None,
            "found_in": "nowhere: the chat template has no known format",
            "think_tags": None,
            "thinking_switch": None,
        },
    }


def test_capabilities_are_those_of_today(api: Client) -> None:
    capabilities = api.get("/v1/models/tiny").json()["capabilities"]
    assert {name for name, able in capabilities.items() if able} == {
        "token_prompts",
        "chat",
        "ebnf",
        "regex",
        "json_schema",
        "structural_tag",
        "lark",
        "processed_logprobs",
        "sampling_support",
        "scores",
        "close",
        "hidden_states",
        "logprobs",
        "adapters",
        "forward",
    }
    assert capabilities["adapters"] == ["polite"]
    assert capabilities["forward"] == "torch"
    assert capabilities["quantization"] is None
    texts = api.get("/v1/models/texts").json()["capabilities"]
    assert all(texts[name] for name in ("text_prompts", "tools", "thinking"))
    assert texts["forward"] is None  # no worker serves it


def test_an_adapter_is_a_model_with_a_parent(api: Client) -> None:
    adapted = api.get("/v1/models/tiny:polite").json()
    assert (adapted["id"], adapted["root"], adapted["parent"]) == ("tiny:polite", "tiny", "tiny")
    unknown = api.get("/v1/models/tiny:rude")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "adapter_not_found")


def test_a_model_that_is_loaded_when_asked_for_starts_cold(
    api: Client, fake_process: FakeProcess
) -> None:
    fake_process.standby = {"tiny", "texts"}
    shown = {name: api.get(f"/v1/models/{name}").json() for name in ("tiny", "texts")}
    assert {name: (m["status"], m["cold_start"]) for name, m in shown.items()} == {
        "tiny": ("loaded", False),
        "texts": ("unloaded", True),
    }
    fake_process.live = {}
    assert api.get("/readyz").status_code == 200


def test_a_model_without_files_or_worker_is_listed_as_such(api: Client) -> None:
    absent = api.get("/v1/models/absent").json()
    assert (absent["status"], absent["max_model_len"]) == ("unloaded", None)
    assert absent["capabilities"] is None


def test_ids_with_slashes(api: Client) -> None:
    for path in ("/v1/models/org/slashed", "/v1/models/org%2Fslashed"):
        assert api.get(path).json()["id"] == "org/slashed"


def test_unknown_model(api: Client) -> None:
    response = api.get("/v1/models/none")
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("tinny", "tiny"),
        ("Tiny", "tiny"),
        ("org/slash", "org/slashed"),
        ("tiny:polit", "tiny:polite"),
        ("gpt-5", None),
        ("x" * 10_000, None),
    ],
)
def test_an_unknown_model_is_answered_with_the_nearest(
    api: Client, name: str, near: str | None
) -> None:
    for answer in (
        api.get(f"/v1/models/{name}"),
        api.post("/v1/completions", {"model": name, "prompt": [1]}, "application/json"),
    ):
        error = answer.json()["error"]
        if error["code"] == "adapter_not_found":
            assert "it has: polite" in error["message"]
        elif near:
            assert f"Did you mean {near!r}?" in error["message"]
        else:
            assert "Did you mean" not in error["message"]


def test_no_model_is_suggested_that_the_key_may_not_use(api: Client, owner: Tenant) -> None:
    ApiKey.objects.filter(pk=owner.key.pk).update(allowed_models=["org/slashed"])
    assert "Did you mean" not in api.get("/v1/models/tinny").json()["error"]["message"]


def test_restricted_keys_see_their_models(api: Client, owner: Tenant) -> None:
    ApiKey.objects.filter(pk=owner.key.pk).update(allowed_models=["org/slashed"])
    assert [model["id"] for model in api.get("/v1/models").json()["data"]] == ["org/slashed"]
    assert api.get("/v1/models/tiny").status_code == 403


def test_an_unreachable_redis(api: Client, fake_process: FakeProcess) -> None:
    fake_process.failure = redis.ConnectionError()
    response = api.get("/v1/models")
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "queue_unavailable"


def test_paths_and_parameters_must_not_contain_nul(api: Client) -> None:
    assert api.get("/v1/models/%00").json()["error"]["code"] == "not_found"
    answer = api.get("/v1/files?purpose=a%00")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "purpose")
