"""The OpenAPI document: complete, with examples that hold, and a page without foreign assets."""

import re
import time
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import orjson
import pytest
from django.test import Client
from drf_spectacular.validation import validate_schema

from completions.endpoints.openapi import views
from completions.endpoints.openapi.operations import OPERATIONS
from completions.endpoints.openapi.views import document
from completions.urls import urlpatterns
from tests.completions.conftest import FakeRuntime, Tenant

NOT_JSON = {"docs", "metrics"}


def test_it_is_served_to_everybody_and_is_valid_openapi(client: Client) -> None:
    served = client.get("/v1/openapi.json").json()
    assert served == document()
    assert served["openapi"].startswith("3.1")
    validate_schema(served)


def test_it_is_made_once_however_many_ask_first(monkeypatch: pytest.MonkeyPatch) -> None:
    making = 0

    class Generator:
        def get_schema(self, **_options: object) -> dict[str, object]:
            nonlocal making
            making += 1
            time.sleep(0.05)
            return {}

    monkeypatch.setattr(views, "SchemaGenerator", Generator)
    views._made.cache_clear()
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: document(), range(4)))
    finally:
        views._made.cache_clear()
    assert making == 1


def test_every_route_and_method_is_described() -> None:
    for pattern in urlpatterns:
        path = "/" + re.sub(r"<\w+:(\w+)>", r"{\1}", str(pattern.pattern))
        if path[1:] in NOT_JSON:
            continue
        view = pattern.callback.cls  # type: ignore[union-attr]
        for method in ("get", "post", "put", "patch", "delete"):
            described = method in document()["paths"].get(path, {})
            assert described == hasattr(view, method), f"{method} {path}: see operations.py"


@pytest.mark.parametrize("key", OPERATIONS, ids=" ".join)
def test_the_examples_are_what_the_schemas_say(key: tuple[str, str]) -> None:
    method, path = key
    operation = OPERATIONS[key]
    if operation.request is not None:
        jsonschema.validate(operation.example, operation.request().to_schema())
    assert operation.answer_example is not None
    jsonschema.validate(operation.answer_example, operation.answers[200])
    written = document()["paths"][path][method.lower()]
    assert written["summary"]
    assert bool(written.get("security")) != operation.public


def test_a_stream_is_described_event_by_event() -> None:
    for path in ("/v1/completions", "/v1/chat/completions"):
        answers = document()["paths"][path]["post"]["responses"]
        content = answers["200"]["content"]
        assert content["text/event-stream"]["schema"]["required"] == ["data"]
        assert "choices" in content["application/json"]["schema"]["required"]
        assert list(answers["202"]["content"]) == ["application/json"]


def test_requests_are_closed_and_documented_field_by_field() -> None:
    for name, schema in document()["components"]["schemas"].items():
        assert schema["additionalProperties"] is False, name
        for field, described in schema["properties"].items():
            assert described["description"], f"{name}.{field}"


def test_real_answers_match(api: Client, owner: Tenant, fake_runtime: FakeRuntime) -> None:
    for method, path, url, body in (
        ("GET", "/v1/models", "/v1/models", None),
        ("GET", "/v1/models/{model_id}", "/v1/models/tiny", None),
        ("POST", "/v1/tokenize", "/v1/tokenize", {"model": "tiny", "prompt": "a"}),
        ("POST", "/v1/detokenize", "/v1/detokenize", {"model": "tiny", "tokens": [64]}),
        ("POST", "/v1/grammars/validate", "/v1/grammars/validate",
         {"model": "tiny", "regex": "a", "text": "a"}),
        ("GET", "/v1/files", "/v1/files", None),
        ("GET", "/v1/batches", "/v1/batches", None),
        ("GET", "/healthz", "/healthz", None),
    ):  # fmt: skip
        answer = api.generic(
            method, url, orjson.dumps(body) if body else b"", content_type="application/json"
        )
        assert answer.status_code == 200, answer.content
        jsonschema.validate(answer.json(), OPERATIONS[method, path].answers[200])


def test_the_page_needs_nothing_from_elsewhere(client: Client, db: None) -> None:
    page = client.get("/docs")
    assert page.status_code == 200
    text = page.content.decode()
    addresses = re.findall(r'(?:src|href)="([^"]+)"', text)
    assert all(address.startswith(("/static/", "data:")) for address in addresses)
    for address in addresses:
        if address.startswith("/static/"):
            asset = client.get(address)
            assert asset.status_code == 200
            asset.close()
    assert "/v1/openapi.json" in text
