"""Pages of other origins: preflights, answers, refusals, streams."""

import os
import subprocess
import sys

import pytest

from project.server.cross_origin import CrossOriginHeaders, Preflights
from project.server.gateway import Gateway
from tests.acceptance.service import ROOT

APP = "https://app.example.com"


async def application(scope, receive, send):
    """A stream of events."""
    headers = [(b"content-type", b"text/event-stream"), (b"Location", b"/v1/completions/a")]
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def ask(origins, method="POST", path="/v1/completions", body=b"", **headers):
    """Status, headers and body of what a page gets."""
    edge = CrossOriginHeaders(Gateway(Preflights(application, origins), 10), origins)
    sent = []

    async def receive():
        return {"type": "http.request", "body": body}

    async def send(message):
        sent.append(message)

    named = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    await edge({"type": "http", "method": method, "path": path, "headers": named}, receive, send)
    start, *pieces = sent
    found = {}
    for name, value in start["headers"]:
        found.setdefault(name.decode().lower(), []).append(value.decode())
    return start["status"], found, b"".join(piece.get("body", b"") for piece in pieces)


def preflight(origins, path="/v1/completions", **headers):
    return ask(origins, "OPTIONS", path, access_control_request_method="POST", **headers)


async def test_a_preflight_allows_what_the_page_wants_to_send():
    wanted = "authorization,content-type,x-stainless-lang"
    status, headers, body = await preflight(
        [APP], origin=APP, access_control_request_headers=wanted
    )
    assert (status, body) == (204, b"")
    assert headers["access-control-allow-origin"] == [APP]
    assert headers["access-control-allow-headers"] == [wanted]
    assert "DELETE" in headers["access-control-allow-methods"][0]
    assert set(headers["vary"]) == {"Origin", "Access-Control-Request-Headers"}
    assert "access-control-allow-credentials" not in headers
    assert headers["x-request-id"]


@pytest.mark.parametrize("names", ["", "a\x01b", "x" * 5000])
async def test_strange_names_of_headers_are_not_echoed(names):
    _, headers, _ = await preflight([APP], origin=APP, access_control_request_headers=names)
    assert headers["access-control-allow-headers"] == ["authorization, content-type"]


@pytest.mark.parametrize("origin", ["https://evil.example.com", "null", f"{APP}.evil.com", "é"])
async def test_a_preflight_of_another_origin_is_refused(origin):
    status, headers, body = await preflight([APP], origin=origin)
    assert status == 403
    assert "access-control-allow-origin" not in headers
    assert b"QUIRE_CORS_ORIGINS" in body
    assert headers["vary"] == ["Origin"]


async def test_a_stream_names_the_origin_and_exposes_every_header():
    status, headers, body = await ask([APP, "http://localhost:3000"], origin=APP)
    assert (status, body) == (200, b"data: 1\n\ndata: [DONE]\n\n")
    assert headers["access-control-allow-origin"] == [APP]
    assert headers["access-control-expose-headers"] == [
        "location, openai-processing-ms, x-request-id"
    ]


async def test_a_refusal_can_be_read_too():
    status, headers, body = await ask([APP], body=b"x" * 11, origin=APP)
    assert (status, headers["access-control-allow-origin"]) == (413, [APP])
    assert b"payload_too_large" in body


async def test_every_origin_may_be_allowed():
    for _, headers, _ in (
        await ask(["*"], origin="null"),
        await preflight(["*"], origin=APP),
    ):
        assert headers["access-control-allow-origin"] == ["*"]
        assert "Origin" not in headers.get("vary", [])


_SCRIPT = """
import asyncio, project.asgi

async def main():
    sent = []
    async def send(message):
        sent.append(message)
    scope = {
        "type": "http", "method": "OPTIONS", "path": "/v1/models", "query_string": b"",
        "headers": [(b"origin", b"https://app.example.com"),
                    (b"access-control-request-method", b"GET")],
    }
    await project.asgi.application(scope, asyncio.Event().wait, send)
    print(sent[0]["status"], dict(sent[0]["headers"]).get(b"access-control-allow-origin"))

asyncio.run(main())
"""


@pytest.mark.wide
def test_the_setting_reaches_the_application(tmp_path):
    environment = {**os.environ, "QUIRE_HOME": str(tmp_path), "QUIRE_CORS_ORIGINS": APP}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == f"204 {APP.encode()!r}\n", done.stderr


async def test_other_requests_stay_as_they_are():
    for options in ({}, {"origin": "https://evil.example.com"}, {"path": "/docs", "origin": APP}):
        status, headers, _ = await ask([APP], **options)
        assert status == 200
        assert not [name for name in headers if name.startswith("access-control-")]
    status, headers, _ = await preflight([APP], origin=APP, path="/admin/")
    assert status == 200  # the application's own answer
    assert "access-control-allow-methods" not in headers
    assert (await ask([APP], "OPTIONS", origin=APP))[0] == 200  # no preflight
