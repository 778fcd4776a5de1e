"""A client that hangs up, at each moment of its request: its job is cancelled, or goes on."""

import asyncio
import gc
import json
import threading

import orjson
import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.sessions.middleware import SessionMiddleware
from django.test import AsyncClient
from uvicorn.config import Config
from uvicorn.server import ServerState

from completions.batches import files, resubmission
from completions.http import base
from completions.jobs.events import ChoiceEvent
from completions.jobs.execute import StepEvent
from completions.jobs.store import JobStore
from completions.models import Batch, File
from project.server.gateway import Gateway
from project.server.handler import ASGIHandler
from project.server.http_protocol import Protocol
from tests.completions.console.batch_of_results import ended_batch
from tests.completions.live_api import PATH, PREFIX
from tests.project.server.transport import Transport
from tests.running import until

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]


class Connection:
    """A client with the owner's key, through the server's protocol. The test runs the jobs."""

    def __init__(self, live, key):
        live.at_once = False
        self._live = live
        self._key = key
        config = Config(Gateway(ASGIHandler(), 1 << 20), lifespan="off", log_config=None)
        config.load()
        self.state = ServerState()
        self.transport = Transport()
        self.protocol = Protocol(config, self.state, {"process": live.process})
        self.protocol.connection_made(self.transport)

    def send(self, **body):
        self.send_to(PATH, {"prompt": [65], "max_tokens": 2, **body})

    def send_to(self, path, body):
        self.post(path, b"application/json", json.dumps({"model": "tiny", **body}).encode())

    def post(self, path, content_type, content, headers=b""):
        self.protocol.data_received(
            b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: %b\r\n%b"
            b"Authorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
            % (path.encode(), content_type, headers, self._key.encode(), len(content), content)
        )

    async def until_sent(self, number=1):
        await until(lambda: len(self._live.sent) == number)

    async def hang_up(self):
        """Close the connection, and wait until the server has finished the request."""
        self.protocol.connection_lost(None)
        await until(lambda: not self.state.tasks)

    def state_of_job(self, number=0):
        return self._live.redis.hget(f"{PREFIX}job:{self._live.sent[number]}", "state")

    async def until_cancelled(self, number=0):
        await until(lambda: self.state_of_job(number) == b"cancelled")


@pytest.fixture
async def connection(live, owner):
    assert settings.REDIS_PREFIX == PREFIX
    made = Connection(live, owner.secret)
    yield made
    for task in tuple(made.state.tasks):
        task.cancel()


KINDS = pytest.mark.parametrize("stream", [False, True], ids=["answer", "stream"])


@KINDS
async def test_a_hang_up_while_the_job_is_submitted(live, connection, monkeypatch, stream):
    may_go_on, call_each = asyncio.Event(), JobStore.call_each

    async def slow(store, line, calls):
        if calls[0][0] == "submit":
            live.sent.append(orjson.loads(calls[0][1][0])["id"])
            await may_go_on.wait()
        return await call_each(store, line, calls)

    monkeypatch.setattr(JobStore, "call_each", slow)
    connection.send(stream=stream)
    await connection.until_sent()
    await connection.hang_up()
    await asyncio.sleep(0.1)  # in which it could be cancelled too early
    assert connection.state_of_job() is None
    may_go_on.set()
    await connection.until_cancelled()


@KINDS
async def test_a_hang_up_between_the_steps_of_storing_the_job(
    live, connection, monkeypatch, stream
):
    may_go_on, dispatch = asyncio.Event(), live.dispatch

    async def slow(job_id):
        await dispatch(job_id)
        await may_go_on.wait()

    monkeypatch.setattr(live, "dispatch", slow)
    connection.send(stream=stream, rid="mine")
    await connection.until_sent()
    await connection.hang_up()
    assert connection.state_of_job() == b"queued"
    may_go_on.set()
    await connection.until_cancelled()


@KINDS
async def test_a_hang_up_while_the_job_is_queued(connection, stream):
    connection.send(stream=stream)
    await connection.until_sent()
    if stream:
        await until(lambda: b"200 OK" in connection.transport.written)
    await connection.hang_up()
    await connection.until_cancelled()


@KINDS
async def test_a_hang_up_while_a_stored_response_is_queued(connection, stream):
    connection.send_to("/v1/responses", {"input": "Hi", "stream": stream})
    await connection.until_sent()
    if stream:
        await until(lambda: b"response.in_progress" in connection.transport.written)
    await connection.hang_up()
    await connection.until_cancelled()


async def test_a_hang_up_while_the_client_reads(live, connection):
    connection.send(stream=True)
    await connection.until_sent()
    claim = await asyncio.to_thread(live.worker.claim, live.sent[0])
    step = StepEvent(claim.job_id, claim.attempt, 1, [ChoiceEvent(0, [65], "A", None, None)])
    live.worker.execution.publish([step], [])
    await until(lambda: b'"text":"A"' in connection.transport.written)
    await connection.hang_up()
    await until(lambda: live.redis.hget(f"{PREFIX}job:{claim.job_id}", "cancel") == b"1")


async def test_before_the_head_of_its_stream_could_be_written(connection, monkeypatch):
    """The client reads nothing, so the server's buffer is full."""
    full, drain = asyncio.Event(), connection.protocol.flow.drain

    async def waiting():
        full.set()
        await drain()

    monkeypatch.setattr(connection.protocol.flow, "drain", waiting)
    connection.protocol.pause_writing()
    connection.send(stream=True)
    async with asyncio.timeout(30):
        await full.wait()
    assert not connection.transport.written
    await connection.hang_up()
    await connection.until_cancelled()


async def test_while_the_playgrounds_stream_passes_the_middleware(
    live, connection, owner, monkeypatch
):
    """The API has no middleware."""
    began, may_go_on = threading.Event(), threading.Event()
    process_response = SessionMiddleware.process_response

    def slow(middleware, request, response):
        began.set()
        may_go_on.wait(30)
        return process_response(middleware, request, response)

    user, token = await sync_to_async(User.objects.create_superuser)("root"), b"t" * 32
    client = AsyncClient()
    await client.aforce_login(user)
    monkeypatch.setattr(SessionMiddleware, "process_response", slow)
    headers = b"Cookie: csrftoken=%b; sessionid=%b\r\nX-CSRFToken: %b\r\nX-Quire-Key: %d\r\n" % (
        token, client.cookies["sessionid"].value.encode(), token, owner.key.pk,
    )  # fmt: skip
    body = orjson.dumps({"model": "tiny", "prompt": [65], "max_tokens": 2, "stream": True})
    connection.post(f"/admin/playground{PATH}", b"application/json", body, headers)
    await connection.until_sent()
    claim = await asyncio.to_thread(live.worker.claim, live.sent[0])
    step = StepEvent(claim.job_id, claim.attempt, 1, [ChoiceEvent(0, [65], "A", None, None)])
    live.worker.execution.publish([step], [])
    await until(began.is_set)
    connection.protocol.connection_lost(None)
    may_go_on.set()
    await until(lambda: not connection.state.tasks)
    await until(lambda: live.redis.hget(f"{PREFIX}job:{claim.job_id}", "cancel") == b"1")


async def test_a_stream_whose_head_cannot_be_written_yet_is_not_given_up(live, connection):
    connection.protocol.pause_writing()
    connection.send(stream=True)
    await connection.until_sent()
    for _ in range(1000):  # any number of turns of the event loop
        await asyncio.sleep(0)
    connection.protocol.resume_writing()
    assert await asyncio.to_thread(live.worker.run, live.sent[0])
    await until(lambda: b"[DONE]" in connection.transport.written)
    await connection.hang_up()


@KINDS
async def test_a_hang_up_while_another_request_is_pipelined(live, connection, stream):
    connection.send(stream=stream)
    await connection.until_sent()
    connection.send()
    assert connection.transport.reading
    await connection.hang_up()
    await connection.until_cancelled()
    assert len(live.sent) == 1


@KINDS
@pytest.mark.parametrize("path", [PATH, "/v1/responses"])
async def test_a_background_job_goes_on(live, connection, path, stream):
    prompt = {"prompt": [65]} if path == PATH else {"input": "Hi"}
    connection.send_to(path, {**prompt, "stream": stream, "background": True})
    await connection.until_sent()
    await until(lambda: b"HTTP/1.1 20" in connection.transport.written)
    await connection.hang_up()
    assert await asyncio.to_thread(live.worker.run, live.sent[0])


@pytest.mark.parametrize("moment", ["reading", "storing"])
async def test_while_its_upload_is_taken_in(connection, monkeypatch, settings, tmp_path, moment):
    uploads = tmp_path / "uploads"
    uploads.mkdir()
    settings.FILE_UPLOAD_TEMP_DIR, settings.FILE_UPLOAD_MAX_MEMORY_SIZE = uploads, 1
    where, name = {"reading": (base, "_parse"), "storing": (files, "store_upload")}[moment]
    began, may_go_on, function = threading.Event(), threading.Event(), getattr(where, name)

    def slow(*args):
        began.set()
        assert may_go_on.wait(60)
        return function(*args)

    monkeypatch.setattr(where, name, slow)
    parts = b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    line = b'{"custom_id": "x"}\n' * (base.LARGE_BODY // 10)
    content = parts % (b"purpose", b"batch") + parts % (b'file"; filename="a', line) + b"--b--\r\n"
    gc.disable()
    try:
        connection.post("/v1/files", b"multipart/form-data; boundary=b", content)
        await until(began.is_set)
        connection.protocol.connection_lost(None)
        await asyncio.sleep(0.1)
        may_go_on.set()
        await until(lambda: not connection.state.tasks)
        await until(lambda: not list(uploads.iterdir()))
    finally:
        gc.enable()


async def test_while_a_batch_is_sent_again(connection, owner, monkeypatch, settings, tmp_path):
    """Its file has its batch: without one, it would take room that nobody knows of."""
    backend = {**settings.STORAGES["default"], "OPTIONS": {"location": str(tmp_path / "files")}}
    settings.STORAGES = {**settings.STORAGES, "default": backend}
    owner.key.organization = owner.organization
    batch = await sync_to_async(ended_batch)(owner.key, 10)
    began, may_go_on, prepare = threading.Event(), threading.Event(), resubmission.prepare

    def slow(*args):
        began.set()
        assert may_go_on.wait(60)
        return prepare(*args)

    monkeypatch.setattr(resubmission, "prepare", slow)
    connection.post(f"/v1/batches/{batch.id}/resubmit", b"application/json", b"{}")
    await until(began.is_set)
    connection.protocol.connection_lost(None)
    await asyncio.sleep(0.1)
    may_go_on.set()
    await until(lambda: not connection.state.tasks)
    sent = {row.id async for row in File.objects.filter(purpose="batch")}
    assert len(sent) == 2
    assert sent == {row.input_file_id async for row in Batch.objects.all()}
