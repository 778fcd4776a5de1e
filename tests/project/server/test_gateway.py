"""The outermost ASGI layer: request ids and the body limit."""

import asyncio
import gc
import subprocess
import sys
from types import SimpleNamespace

import orjson
import pytest

from completions.accounts.keys import Principal, Refusal
from completions.contract.job_request import JobRequest
from completions.delivery import enqueueing
from completions.exceptions import APIError, from_job_error, payload_too_large
from completions.http.authentication import authenticate
from completions.http.error_handlers import make_response
from project.server import gateway
from project.server.gateway import Gateway
from tests.acceptance.service import ROOT
from tests.completions.conftest import FakeProcess


async def echo(scope, receive, send):
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message["body"])
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d" % size})


async def call(parts, headers=(), limit=10, path="/", uploads=None, application=echo, process=None):
    queue = [
        {"type": "http.request", "body": part, "more_body": i < len(parts) - 1}
        for i, part in enumerate(parts)
    ]
    sent = []

    async def receive():
        return queue.pop(0)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": list(headers)}
    scope |= {"state": {"process": process or FakeProcess()}, "client": ("192.0.2.7", 1234)}
    await Gateway(application, limit, uploads)(scope, receive, send)
    start, body = sent
    return start["status"], dict(start["headers"]), body["body"]


async def start_up(monkeypatch):
    """The lifespan's start, without Redis."""
    sent, came = asyncio.Event(), asyncio.Queue()
    came.put_nowait({"type": "lifespan.startup"})
    monkeypatch.setattr(gateway, "_drain_on_sigterm", lambda here: None)

    async def start():
        return SimpleNamespace(spawn=lambda work: work.close(), validator=None)

    async def send(message):
        sent.set()

    monkeypatch.setattr(gateway.WebProcess, "start", start)
    scope = {"type": "lifespan", "state": {}}
    lifespan = asyncio.create_task(Gateway(echo, 10)(scope, came.get, send))
    await sent.wait()
    lifespan.cancel()
    await asyncio.gather(lifespan, return_exceptions=True)


async def test_the_collector_passes_over_what_was_imported(monkeypatch):
    usual = gc.get_threshold()
    try:
        await start_up(monkeypatch)
        assert gc.get_freeze_count() > 10_000
        assert gc.get_threshold()[0] == gateway.GARBAGE
    finally:
        gc.unfreeze()
        gc.set_threshold(*usual)


@pytest.mark.integration
def test_a_process_whose_event_loop_stops_is_ended():
    """As by a regular expression without end, which keeps the interpreter's lock."""
    program = (
        "import asyncio, ctypes, django; django.setup()\n"
        "from project.server import gateway; gateway.SILENCE = 1.0\n"
        "async def hang():\n"
        "    feeding = asyncio.create_task(gateway.feed_watchdog())\n"
        "    await asyncio.sleep(0.1)\n"
        "    ctypes.PyDLL(None).pause()\n"
        "asyncio.run(hang())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr


async def test_a_body_up_to_the_limit_passes():
    status, _, body = await call([b"12345", b"67890"])
    assert (status, body) == (200, b"10")


@pytest.mark.parametrize(
    ("parts", "headers"),
    [
        ([b"x"], [(b"content-length", b"11")]),  # refused before it is read
        ([b"12345", b"678901"], []),  # chunked: nobody declared its length
        ([b"12345", b"678901"], [(b"content-length", b"2")]),  # a lie
    ],
)
async def test_a_larger_body_is_refused(parts, headers):
    status, sent, body = await call(parts, headers)
    assert status == 413
    assert orjson.loads(body)["error"]["code"] == "payload_too_large"
    assert sent[b"connection"] == b"close"


async def test_a_refusal_has_its_length():
    _, headers, body = await call([b"x" * 11])
    assert headers[b"content-length"] == b"%d" % len(body)


async def test_every_answer_carries_a_request_id():
    _, first, _ = await call([b""])
    _, second, _ = await call([b""])
    assert first[b"x-request-id"].startswith(b"req_")
    assert first[b"x-request-id"] != second[b"x-request-id"]


@pytest.mark.parametrize(
    ("given", "kept"), [(b"trace-1:a.b_c", True), (b"a b", False), (b"x" * 65, False), (b"", False)]
)
async def test_a_clients_request_id_is_kept_when_it_is_harmless(given, kept):
    _, headers, _ = await call([b""], [(b"x-request-id", given)])
    assert (headers[b"x-request-id"] == given) is kept


async def test_a_job_carries_the_id_of_its_request(served):
    made = []

    async def application(scope, receive, send):
        prepared = SimpleNamespace(
            context=SimpleNamespace(id="cmpl-1", served_model="tiny", rids=(), to_json=bytes),
            job_request=JobRequest(),
            request=SimpleNamespace(
                model=SimpleNamespace(entry=SimpleNamespace(token_prices=())),
                response=None,
                deadline=None,
            ),
            session_turn=None,
        )
        principal = Principal(1, 2, "abc", (), None)
        made.append(enqueueing.new_job(prepared, "sync", principal))
        await echo(scope, receive, send)

    await call([b""], [(b"x-request-id", b"trace-1")], application=application)
    assert [job.request_id for job in made] == ["trace-1"]


@pytest.fixture
def good_key(fake_process, monkeypatch):
    async def verify(secret):
        return Principal(1, 1, "abc", (), None) if secret == "good" else Refusal.INVALID

    monkeypatch.setattr(fake_process.key_ring, "verify", verify)
    return [(b"authorization", b"Bearer good")]


async def test_uploads_have_a_limit_of_their_own():
    uploads = {"/v1/files": 20, "/v1/uploads/[^/]+/parts": 18}
    status, _, body = await call([b"x" * 15], path="/v1/files", uploads=uploads)
    assert (status, body) == (200, b"15")
    status, _, body = await call([b"x" * 21], path="/v1/files", uploads=uploads)
    assert status == 413
    assert b"20 bytes" in body
    status, _, _ = await call([b"x" * 18], path="/v1/uploads/u/parts", uploads=uploads)
    assert status == 200
    for other in ("/v1/other", "/v1/files/f", "/v1/uploads/u/x/parts", "/v1/uploads//parts"):
        status, _, _ = await call([b"x" * 15], path=other, uploads=uploads)
        assert status == 413


@pytest.mark.parametrize("declared", [True, False])
async def test_only_holders_of_a_key_may_send_a_large_body(
    good_key, fake_process, monkeypatch, declared
):
    monkeypatch.setattr(gateway, "STRANGERS_BYTES", 6)

    async def sent(parts, key):
        length = b"%d" % sum(map(len, parts))
        headers = [*key, *([(b"content-length", length)] if declared else [])]
        return await call(parts, headers, limit=20, process=fake_process)

    status, _, body = await sent([b"12345", b"678901"], good_key)
    assert (status, body) == (200, b"11")
    status, _, _ = await sent([b"12345", b"678901"], [(b"x-api-key", b"good")])
    assert status == 200
    status, _, body = await sent([b"12345", b"6"], [])
    assert (status, body) == (200, b"6")
    for key in ([], [(b"authorization", b"Bearer bad")]):
        status, headers, body = await sent([b"12345", b"67"], key)
        assert status == 401
        assert headers[b"www-authenticate"] == b"Bearer"
        assert headers[b"connection"] == b"close"


async def test_a_refusal_has_the_shape_of_its_api(good_key, fake_process):
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        status, headers, body = await call([b"x" * 11], good_key, path=path, process=fake_process)
        refusal = orjson.loads(body)
        assert (status, refusal["error"]["type"]) == (413, "request_too_large")
        assert refusal["request_id"].encode() == headers[b"request-id"] == headers[b"x-request-id"]
    _, headers, body = await call([b"x" * 11], good_key, path="/v1/chat", process=fake_process)
    assert orjson.loads(body)["error"]["code"] == "payload_too_large"
    assert b"request-id" not in headers


async def test_refusals_are_counted_where_they_leave(good_key, fake_process):
    async def view(scope, receive, send):
        """Refuse every request, as `AsyncAPIView` does; the job of `/job` fails."""
        error = APIError("invalid_value", f"{scope['path']} is wrong")
        try:
            await authenticate(fake_process, dict(scope["headers"])[b"authorization"].decode())
        except APIError as refusal:
            error = refusal
        else:
            await receive()
        failed = scope["path"] == "/job"
        response = make_response(from_job_error("worker_error") if failed else error, scope["path"])
        status = response.status_code
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": response.content})

    async def send(body, path, key):
        await call([body], key, path=path, application=view, process=fake_process)

    for path in ("/a", "/b", "/job"):
        await send(b"", path, good_key)
    await send(b"x" * 11, "/large", good_key)  # refused by the gateway itself
    await send(b"", "/a", [(b"authorization", b"Bearer bad")])
    counts = fake_process.refusals.take()
    assert [
        (cell.code, each.count, each.latest["message"]) for cell, each in counts.refusals.items()
    ] == [
        ("invalid_value", 2, "/b is wrong"),
        ("payload_too_large", 1, payload_too_large(10).message),
    ]
    assert [(cell.masked, cell.address) for cell in counts.wrong_keys] == [("***", "192.0.2.7")]


@pytest.mark.parametrize("stores", [True, False])
async def test_a_refusal_quotes_a_request_only_where_prompts_are_stored(
    good_key, fake_process, monkeypatch, stores
):
    async def verify(secret):
        return Principal(1, 1, "abc", (), None, store_prompts=stores)

    async def view(scope, receive, send):
        await authenticate(fake_process, "Bearer good")
        error = APIError("invalid_value", "stop: 'a secret' is wrong", "stop")
        response = make_response(error, scope["path"])
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": response.content})

    monkeypatch.setattr(fake_process.key_ring, "verify", verify)
    await call([b""], good_key, application=view, process=fake_process)
    (count,) = fake_process.refusals.take().refusals.values()
    assert ("secret" in count.latest["message"]) is stores
    assert count.latest["message"].startswith("stop: ")


async def test_pages_take_no_large_body_and_ask_for_no_key(monkeypatch):
    """A user of the playground has a session, and could not send a key."""
    monkeypatch.setattr(gateway, "STRANGERS_BYTES", 6)
    path = "/admin/playground/v1/completions"
    assert (await call([b"123456"], path=path))[0] == 200
    status, _, body = await call([b"1234567"], path=path)
    assert (status, orjson.loads(body)["error"]["code"]) == (413, "payload_too_large")
    assert "6 bytes" in orjson.loads(body)["error"]["message"]


async def test_the_page_of_new_batches_takes_files_from_its_users(monkeypatch):
    monkeypatch.setattr(gateway, "STRANGERS_BYTES", 6)
    uploads, seen = {gateway.UPLOAD_PAGE: 8}, []

    async def may_upload(cookies):
        seen.append(cookies)
        return cookies == "sessionid=good"

    monkeypatch.setattr(gateway.page_users, "may_upload", may_upload)

    async def sent(body, cookies, path=gateway.UPLOAD_PAGE):
        return (await call([body], [(b"cookie", cookies)], path=path, uploads=uploads))[0]

    assert await sent(b"123456", b"") == 200
    assert seen == []  # a small body is left to the page
    assert await sent(b"1234567", b"sessionid=good") == 200
    assert await sent(b"1234567", b"sessionid=bad") == 413
    assert await sent(b"123456789", b"sessionid=good") == 413
    assert await sent(b"1234567", b"sessionid=good", "/admin/batches/x/results/") == 413


async def test_a_slow_body_is_refused(monkeypatch):
    monkeypatch.setattr(gateway, "BODY_SECONDS", 0.05)
    parts = [{"type": "http.request", "body": b"x", "more_body": True}]
    sent = []

    async def receive():
        return parts.pop() if parts else await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    async with asyncio.timeout(30):
        await Gateway(echo, 10)(scope, receive, send)
    assert sent[0]["status"] == 408
    assert orjson.loads(sent[1]["body"])["error"]["code"] == "request_timeout"


async def test_no_time_limit_applies_after_the_body(monkeypatch):
    """After the body, the application waits for a hang-up."""
    parts = [{"type": "http.request", "body": b"x"}]
    sent = []

    async def receive():
        return parts.pop() if parts else await asyncio.Event().wait()

    async def application(scope, receive, send):
        assert (await receive())["body"] == b"x"
        monkeypatch.setattr(gateway, "BODY_SECONDS", -1.0)
        with pytest.raises(TimeoutError):  # of this test
            await asyncio.wait_for(receive(), 0.05)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    await Gateway(application, 10)(scope, receive, send)
    assert sent[0]["status"] == 200


async def test_a_request_cut_by_shutdown_gets_an_error():
    begun = asyncio.Event()

    async def application(scope, receive, send):
        begun.set()
        await asyncio.Event().wait()

    calling = asyncio.create_task(call([b""], application=application))
    await begun.wait()
    calling.cancel()
    status, headers, body = await calling
    assert (status, orjson.loads(body)["error"]["code"]) == (503, "server_shutting_down")
    assert int(headers[b"retry-after"]) >= 1
    assert headers[b"x-request-id"].startswith(b"req_")


async def test_a_response_that_has_begun_is_cut_when_the_server_stops():
    begun = asyncio.Event()

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        begun.set()
        await asyncio.Event().wait()

    calling = asyncio.create_task(call([b""], application=application))
    await begun.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
