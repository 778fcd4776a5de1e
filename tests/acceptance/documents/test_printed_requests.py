"""Requests as the documentation of other services prints them, with another URL, key and model."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.contract.answers import Form, fold
from tests.acceptance.service import MODEL, Installation
from tests.acceptance.small_model import SMALL

pytestmark = pytest.mark.acceptance

PRINTED = json.loads(Path(__file__).with_name("printed_requests.json").read_text())
ENDED = {"stop", "length"}


@pytest.mark.represented_by("GLM-5.1 endpoint with token ids: a grammar", "mistral.rs: completions")
@pytest.mark.parametrize("printed", PRINTED, ids=[each["from"] for each in PRINTED])
def test_it_runs(service: Installation, http: httpx.Client, printed: dict[str, Any]) -> None:
    """Token ids go to the model whose vocabulary has them, texts to the one that takes texts."""
    body, route = printed["body"], printed["route"]
    model = MODEL if isinstance(body.get("prompt"), list) else SMALL
    service.wait_served(model)
    response = http.post(route, json={**body, "model": model})
    assert response.status_code == 200, response.text
    answer = fold(Form(route, stream=body.get("stream", False)), response)
    assert len(answer.choices) == 1
    assert set(answer.each("finish_reason")) <= ENDED
    for text in answer.texts:
        assert "texts" not in printed or re.fullmatch(printed["texts"], text), text
