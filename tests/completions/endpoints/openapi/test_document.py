"""The OpenAPI document: complete, with examples that hold, and a page without foreign assets."""

import re
from typing import Any

import jsonschema
import orjson
import pytest
import schemathesis
from django.test import Client

from completions.endpoints.openapi import examples
from completions.endpoints.openapi.document import make_document
from completions.endpoints.openapi.operations import OPERATIONS
from completions.urls import urlpatterns
from tests.completions.conftest import FakeProcess, Tenant

NOT_JSON = {"docs", "metrics"}


def test_it_is_public_and_valid_openapi(client: Client) -> None:
    served = client.get("/v1/openapi.json").json()
    assert served == make_document()
    assert served["openapi"].startswith("3.1")
    schemathesis.openapi.from_dict(served).validate()


def test_every_route_and_method_is_described() -> None:
    for pattern in urlpatterns:
        path = "/" + re.sub(r"<\w+:(\w+)>", r"{\1}", str(pattern.pattern))
        if path[1:] in NOT_JSON:
            continue
        view = pattern.callback.cls  # type: ignore[union-attr]
        for method in ("get", "post", "put", "patch", "delete"):
            described = method in make_document()["paths"].get(path, {})
            assert described == hasattr(view, method), f"{method} {path}: see operations.py"


ALL = {key: each for group in OPERATIONS.values() for key, each in group.items()}


def schema_of(example: Any) -> dict[str, Any]:
    """The schema of a response, whose references can be followed."""
    return {**examples.make_schema(example), "components": make_document()["components"]}


@pytest.mark.parametrize("key", ALL)
def test_the_examples_are_what_the_schemas_say(key: str) -> None:
    method, path = key.split()
    operation = ALL[key]
    if isinstance(operation.request, type):
        jsonschema.validate(operation.example, operation.request().to_schema())
    jsonschema.validate(examples.make_value(operation.response), schema_of(operation.response))
    written = make_document()["paths"][path][method.lower()]
    assert written["summary"]
    assert bool(written["security"]) != operation.is_public


LISTS = (
    "/v1/files",
    "/v1/batches",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/usage",
    "/v1/models",
    "/v1/sessions",
)


@pytest.mark.parametrize("path", LISTS)
def test_a_list_refuses_every_parameter_but_those_that_are_described(
    api: Client, served: None, path: str
) -> None:
    described = {each["name"] for each in ALL[f"GET {path}"].parameters}
    refused = api.get(path, {"no.such": "1"})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "unknown_parameter")
    _, colon, names = error["message"].partition("This route has: ")
    assert (set(names.removesuffix(".").split(", ")) if colon else set()) == described


def test_statuses_and_references() -> None:
    paths = make_document()["paths"]
    polled = paths["/v1/completions/{job_id}"]["get"]["responses"]
    assert polled.keys() == {"200", "304", "400", "401", "403", "404", "500", "503"}
    assert "content" not in polled["304"]
    assert paths["/v1/files"]["post"]["responses"].keys() >= {"409", "413", "415"}
    assert paths["/readyz"]["get"]["responses"].keys() == {"200", "503"}
    listed = paths["/v1/files"]["get"]["responses"]["200"]["content"]["application/json"]
    rows = listed["schema"]["properties"]["data"]["items"]
    assert rows == {"$ref": "#/components/schemas/File"}


def test_a_stream_is_described_event_by_event() -> None:
    for path in ("/v1/completions", "/v1/chat/completions"):
        answers = make_document()["paths"][path]["post"]["responses"]
        content = answers["200"]["content"]
        assert content["text/event-stream"]["schema"] == {"$ref": "#/components/schemas/Event"}
        assert content["application/json"]["schema"]["$ref"].endswith("Completion")
        assert list(answers["202"]["content"]) == ["application/json"]


def test_requests_are_closed_and_documented_field_by_field() -> None:
    schemas = make_document()["components"]["schemas"]
    requests = {name: schemas[name] for name in schemas.keys() - examples.SCHEMAS.keys()}
    assert len(requests) == 21
    for name, schema in requests.items():
        assert schema["additionalProperties"] is False, name
        for field, described in schema["properties"].items():
            assert described["description"], f"{name}.{field}"


def test_real_answers_match(api: Client, owner: Tenant, fake_process: FakeProcess) -> None:
    for method, path, url, body in (
        ("GET", "/v1/models", "/v1/models", None),
        ("GET", "/v1/models/{model_id}", "/v1/models/tiny", None),
        ("POST", "/v1/tokenize", "/v1/tokenize", {"model": "tiny", "prompt": "a"}),
        ("POST", "/v1/detokenize", "/v1/detokenize", {"model": "tiny", "tokens": [64]}),
        (
            "POST",
            "/v1/grammars/validate",
            "/v1/grammars/validate",
            {"model": "tiny", "regex": "a", "text": "a"},
        ),
        ("GET", "/v1/files", "/v1/files", None),
        ("GET", "/v1/batches", "/v1/batches", None),
        ("GET", "/healthz", "/healthz", None),
    ):
        answer = api.generic(
            method, url, orjson.dumps(body) if body else b"", content_type="application/json"
        )
        assert answer.status_code == 200, answer.content
        jsonschema.validate(answer.json(), schema_of(ALL[f"{method} {path}"].response))


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
    assert "<script>" not in text
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "script-src" not in policy
