"""The OpenAPI document: complete, with examples that hold, and a page without foreign assets."""

import re
from typing import Any

import jsonschema
import orjson
import pytest
import schemathesis
from django.test import Client

from completions.endpoints.openapi import shapes
from completions.endpoints.openapi.document import document
from completions.endpoints.openapi.operations import OPERATIONS
from completions.urls import urlpatterns
from tests.completions.conftest import FakeRuntime, Tenant

NOT_JSON = {"docs", "metrics"}


def test_it_is_served_to_everybody_and_is_valid_openapi(client: Client) -> None:
    served = client.get("/v1/openapi.json").json()
    assert served == document()
    assert served["openapi"].startswith("3.1")
    schemathesis.openapi.from_dict(served).validate()


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
    assert operation.response_example is not None
    jsonschema.validate(operation.response_example, operation.responses[200])
    written = document()["paths"][path][method.lower()]
    assert written["summary"]
    assert bool(written.get("security")) != operation.public


def test_references_stand_for_the_whole_shape() -> None:
    def whole(schema: Any) -> Any:
        if isinstance(schema, list):
            return [whole(each) for each in schema]
        if not isinstance(schema, dict):
            return schema
        if "$ref" in schema:
            name = schema["$ref"].removeprefix("#/components/schemas/")
            return whole(document()["components"]["schemas"][name])
        return {name: whole(each) for name, each in schema.items()}

    for (method, path), operation in OPERATIONS.items():
        written = document()["paths"][path][method.lower()]["responses"]
        assert written.keys() == {*map(str, operation.responses), *map(str, operation.errors)}
        for status, shape in operation.responses.items():
            content = written[str(status)].get("content")
            described = content and whole(content[operation.media_types[0]]["schema"])
            assert described == shape


def test_a_stream_is_described_event_by_event() -> None:
    for path in ("/v1/completions", "/v1/chat/completions"):
        answers = document()["paths"][path]["post"]["responses"]
        content = answers["200"]["content"]
        assert content["text/event-stream"]["schema"] == {"$ref": "#/components/schemas/Event"}
        assert content["application/json"]["schema"]["$ref"].endswith("Completion")
        assert list(answers["202"]["content"]) == ["application/json"]


def test_requests_are_closed_and_documented_field_by_field() -> None:
    schemas = document()["components"]["schemas"]
    requests = {name: schemas[name] for name in schemas.keys() - shapes.NAMED.keys()}
    assert len(requests) == 6
    for name, schema in requests.items():
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
        jsonschema.validate(answer.json(), OPERATIONS[method, path].responses[200])


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
