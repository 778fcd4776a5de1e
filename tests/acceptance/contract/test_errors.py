"""Every row of the contract's section 6, on both routes, streamed and not: an error never begins a
stream, and its envelope is OpenAI's."""

import json
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from tests.acceptance.contract.answers import CHAT, COMPLETIONS, ROUTES, Form
from tests.acceptance.contract.error_rows import KEYS, PROMPT, SHOWN_BY, SITUATIONS, Situation
from tests.acceptance.contract.rows import filled
from tests.acceptance.service import ended_job
from tests.acceptance.small_model import POISONS, RAISES, SMALL

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).resolve().parents[3]
MAKE_KEYS = """
from datetime import timedelta
from django.core.management import call_command
from django.utils import timezone
from completions.accounts import changes
from completions.models import ApiKey
for name, options in {keys!r}.items():
    call_command("create_api_key", f"table: {{name}}", *options)
ApiKey.objects.filter(name="table: expired").update(
    expires_at=timezone.now() - timedelta(hours=1)
)
changes.announce_change()
call_command("revoke_api_key", "table: revoked")
"""


@pytest.fixture(scope="module")
def keys(service) -> Mapping[str, str]:
    """Secrets by name, "" for none."""
    service.wait_served(SMALL)
    printed = service.manage("shell", "-v0", "-c", MAKE_KEYS.format(keys=dict(KEYS)))
    secrets = [line for line in printed.splitlines() if line.startswith("sk-")]
    assert len(secrets) == len(KEYS)
    good = secrets[0]
    nobodys = good[:-1] + ("a" if good[-1] != "a" else "b")
    return {**dict(zip(KEYS, secrets, strict=True)), "nobody's": nobodys}


def ask(
    client: httpx.Client, keys: Mapping[str, str], form: Form, row: Situation
) -> httpx.Response:
    headers = dict(row.headers)
    if row.key:
        headers["Authorization"] = f"Bearer {keys[row.key]}"
    path = form.route + row.suffix
    if row.content is not None:
        return client.request(row.method, path, content=row.content, headers=headers)
    if row.method == "GET":
        return client.get(path, headers=headers)
    return client.request(row.method, path, json=filled(form, row.body), headers=headers)


def wrong(
    answer: httpx.Response, row: Situation, route: str, keys: Mapping[str, str]
) -> str | None:
    expected = row.error
    param = (
        expected.param if expected.param != PROMPT else "messages" if route == CHAT else "prompt"
    )
    if not answer.headers["content-type"].startswith("application/json"):
        return "no JSON"
    error = answer.json().get("error", {})
    if set(error) != {"message", "type", "param", "code"} or not error["message"]:
        return "no envelope"
    found = (answer.status_code, error["type"], error["code"], error["param"])
    if found != (expected.status, expected.type, expected.code, param):
        return "another error"
    if any(secret in answer.text for secret in keys.values()):
        return "it contains a key"
    for name, value in expected.headers.items():
        here = answer.headers.get(name, "")
        if (here == "") if value is None else (here != value):
            return f"{name} is {here!r}"
    return None


@pytest.mark.parametrize("route", ROUTES)
def test_every_situation_has_its_own_error(service, keys: Mapping[str, str], route: str) -> None:
    found = []
    with httpx.Client(base_url=service.url, timeout=120) as client:
        for stream in (False, True):
            for row in SITUATIONS:
                answer = ask(client, keys, Form(route, stream), row)
                if (complaint := wrong(answer, row, route, keys)) is not None:
                    found.append((complaint, stream, row.name, answer.status_code, answer.text))
    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ROUTES)
def test_a_spent_minute_says_when_to_come_again(service, keys, route: str, stream: bool) -> None:
    with service.http(keys["one request a minute"]) as client:
        answers = [client.post(route, json=filled(Form(route, stream), {})) for _ in range(2)]
    refused = answers[1]
    error = refused.json()["error"]
    assert (refused.status_code, error["type"]) == (429, "requests")
    assert error["code"] == "rate_limit_exceeded"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert 0 < int(refused.headers["retry-after-ms"]) <= 60_000
    assert refused.headers["x-ratelimit-limit-requests"] == "1"
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.headers["x-ratelimit-reset-requests"].endswith("s")


@pytest.mark.parametrize("route", ROUTES)
def test_a_cancelled_job_is_polled_as_such(http: httpx.Client, route: str) -> None:
    body = {"max_tokens": 400, "background": True, "ignore_eos": True}
    job = http.post(route, json=filled(Form(route), body)).json()["id"]
    assert http.post(f"{route}/{job}/cancel").status_code == 200
    assert ended_job(http, f"{route}/{job}")["status"] in ("cancelled", "completed")


@pytest.mark.parametrize("route", ROUTES)
def test_one_idempotency_key_is_one_request(http: httpx.Client, route: str) -> None:
    headers = {"Idempotency-Key": f"table-{route}"}
    first = http.post(route, json=filled(Form(route), {}), headers=headers)
    again = http.post(route, json=filled(Form(route), {}), headers=headers)
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json()["choices"] == first.json()["choices"]
    other = http.post(route, json=filled(Form(route), {"max_tokens": 5}), headers=headers)
    error = other.json()["error"]
    assert (other.status_code, error["code"]) == (422, "idempotency_key_reused")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("processor", "code"), [(RAISES, "processor_error"), (POISONS, "invalid_logits")]
)
def test_a_broken_processor_is_no_lost_worker(
    http: httpx.Client, route: str, stream: bool, processor: str, code: str
) -> None:
    body = filled(Form(route, stream), {"custom_logit_processor": processor, "max_tokens": 4})
    answer = http.post(route, json=body)
    if stream:
        events = [line for line in answer.text.splitlines() if line.startswith("data: {")]
        error = json.loads(events[-1].removeprefix("data: "))["error"]
    else:
        error = answer.json()["error"]
        assert (answer.status_code, answer.headers["x-should-retry"]) == (500, "false")
    assert (error["type"], error["code"]) == ("server_error", code)
    assert (repr(processor) in error["message"]) == (code == "processor_error")
    assert "secret" not in answer.text


@pytest.mark.parametrize("code", SHOWN_BY)
def test_the_other_situations_have_their_tests(code: str) -> None:
    assert f'"{code}"' in (ROOT / SHOWN_BY[code]).read_text()


def test_answers_have_their_headers(http: httpx.Client, service) -> None:
    for route in (COMPLETIONS, CHAT):
        answer = http.post(route, json=filled(Form(route), {}), headers={"x-request-id": "mine"})
        assert answer.headers["x-request-id"] == "mine"
        assert float(answer.headers["openai-processing-ms"]) > 0
