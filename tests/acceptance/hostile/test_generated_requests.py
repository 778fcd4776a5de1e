"""Valid and invalid requests, which schemathesis generates from the OpenAPI document, to a whole
installation. Every answer is in the document, and every refusal is an error envelope.

QUIRE_GENERATED_REQUESTS is the number of requests to all operations together.
"""

import copy
import json
import os
from contextlib import suppress
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import (
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.core.failures import Failure

from tests.acceptance.service import Installation
from tests.acceptance.small_model import SMALL

pytestmark = [pytest.mark.acceptance, pytest.mark.long]

REQUESTS = int(os.environ.get("QUIRE_GENERATED_REQUESTS", "300"))
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
ENVELOPE = {"message", "type", "param", "code"}
MESSAGES_ENVELOPE = {"message", "type", "details"}
SMALL_VALUES = {
    "model": {"enum": [SMALL, SMALL, SMALL, "nobody"]},
    "max_tokens": {"type": "integer", "minimum": 1, "maximum": 4},
    "max_completion_tokens": {"type": "integer", "minimum": 1, "maximum": 4},
    "max_output_tokens": {"type": "integer", "minimum": 1, "maximum": 4},
    "input": {"type": "string", "maxLength": 20},
    "n": {"type": "integer", "minimum": 1, "maximum": 3},
    "best_of": {"type": "integer", "minimum": 1, "maximum": 3},
    "messages": {
        "type": "array", "minItems": 1, "maxItems": 2,
        "items": {
            "type": "object", "required": ["role", "content"], "additionalProperties": False,
            "properties": {"role": {"enum": ["user", "system"]}, "content": {"type": "string"}},
        },
    },
}  # fmt: skip
"""Replace the document's schemas, so that more requests are accepted, and end soon."""
FEW_FIELDS = 8
"""The most fields of a request; with more, nearly every request contradicts itself."""


def document(service: Installation) -> dict[str, Any]:
    """The OpenAPI document, narrowed where random values would seldom pass the first check."""
    found = copy.deepcopy(requests.get(f"{service.url}/v1/openapi.json", timeout=60).json())
    for name, schema in found["components"]["schemas"].items():
        if not name.endswith("Request"):
            continue
        properties = schema["properties"]
        if "model" in properties:
            properties |= {name: new for name, new in SMALL_VALUES.items() if name in properties}
            schema["maxProperties"] = FEW_FIELDS
        for name in ("messages", "max_tokens", "input", "max_output_tokens"):
            if name in properties and "model" in properties and "tools" in properties:
                schema["required"] = sorted({*schema["required"], name})
    ids = made(service)
    for path, methods in found["paths"].items():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                known = [each for prefix, each in ids if path.startswith(prefix)]
                if parameter["in"] == "path" and known:
                    parameter["schema"] = {"type": "string", "enum": [*known, "nobody"]}
    return found


def made(service: Installation) -> list[tuple[str, str]]:
    """Make objects. Returns pairs of a path and the id of an object below it."""
    calls = {
        "/v1/completions": {"prompt": [5], "max_tokens": 2},
        "/v1/chat/completions": {"messages": "hello", "max_tokens": 2},
        "/v1/responses": {"input": "hello", "max_output_tokens": 2},
    }
    found = [("/v1/models", SMALL)]
    with service.http() as client:
        for path, body in calls.items():
            answer = client.post(path, json={"model": SMALL, "background": True, **body})
            found.append((path, answer.json()["id"]))
        answer = client.post("/v1/conversations", json={})
        found.append(("/v1/conversations", answer.json()["id"]))
        line = {"custom_id": "a", "method": "POST", "url": "/v1/completions",
                "body": {"model": SMALL, "prompt": [5]}}  # fmt: skip
        file = ("lines.jsonl", json.dumps(line).encode())
        answer = client.post("/v1/files", data={"purpose": "batch"}, files={"file": file})
        found.append(("/v1/files", answer.json()["id"]))
        body = {"input_file_id": answer.json()["id"], "endpoint": "/v1/completions"}
        answer = client.post("/v1/batches", json={**body, "completion_window": "24h"})
        found.append(("/v1/batches", answer.json()["id"]))
    return found


@pytest.fixture(scope="module")
def operations(service: Installation) -> list[Any]:
    service.wait_served(SMALL)
    schema = schemathesis.openapi.from_dict(document(service))
    schema.config.update(base_url=service.url)
    found = [result.ok() for result in schema.get_all_operations()]
    return sorted(found, key=lambda operation: operation.method == "delete")  # those last


class NotAnEnvelope(Failure):
    """A refusal that is not the error object of its API."""


def refusals_are_envelopes(_ctx: Any, response: Any, _case: Any) -> bool | None:
    """A check of schemathesis."""
    if response.status_code < 400 or response.request.url.endswith("/readyz"):
        return None
    names = MESSAGES_ENVELOPE if "/v1/messages" in response.request.url else ENVELOPE
    try:
        error = json.loads(response.content)["error"]
        right = set(error) == names and isinstance(error["message"], str)
        texts = error.get("details") or error
        right &= all(each is None or isinstance(each, str) for each in texts.values())
    except (ValueError, KeyError, TypeError):
        right = False
    if not right:
        raise NotAnEnvelope(operation="", title="Not an envelope", message=response.text[:300])
    return None


def overloaded(response: Any) -> bool:
    """Whether this is the intended 503, which says when to try again."""
    return response.status_code == 503 and "retry-after" in map(str.lower, response.headers)


def share(operation: Any) -> int:
    """The weight of an operation: bodies have more ways to be wrong."""
    return 4 if operation.body else 1


def test_every_answer_is_in_the_document(service: Installation, operations: list[Any]) -> None:
    answered: dict[int, int] = {}
    with requests.Session() as session:
        session.headers["Authorization"] = f"Bearer {service.key}"
        parts = sum(map(share, operations)) * len(MODES)
        for operation in operations:
            for mode in MODES:
                count = max(1, share(operation) * REQUESTS // parts)
                _send(operation, mode, count, session, answered)
    print(f"{sum(answered.values())} requests, by status: {dict(sorted(answered.items()))}")
    assert {200, 400, 404} <= answered.keys()


def _send(
    operation: Any, mode: GenerationMode, count: int, session: requests.Session,
    answered: dict[int, int],
) -> None:  # fmt: skip
    """Some requests to one operation."""

    @settings(
        max_examples=count, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck), derandomize=True,
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: schemathesis.Case) -> None:
        response = case.call(session=session, timeout=600)
        answered[response.status_code] = answered.get(response.status_code, 0) + 1
        checks = [status_code_conformance, response_schema_conformance, refusals_are_envelopes]
        if not overloaded(response):
            checks.append(not_a_server_error)
        case.validate_response(response, checks=checks)

    with suppress(Unsatisfiable):  # nothing can be wrong where nothing is sent
        run()
