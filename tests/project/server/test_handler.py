"""A request to the API uses a thread only for the database, and closes its connection."""

import asyncio
import gc
import threading
import warnings

import orjson
import pytest
from asgiref import sync
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.core.signals import request_finished
from django.http import StreamingHttpResponse

from completions.accounts.keys import KeyRing, Principal
from completions.endpoints.health import HealthView
from completions.exceptions import APIError
from project.server.handler import ASGIHandler

pytestmark = pytest.mark.usefixtures("fake_process")


async def answer(path, *request, **options):
    """Status and body."""
    start, body = await exchange(path, *request, **options)
    return start["status"], body


async def exchange(path, method="GET", query=b"", headers=(), content=b""):
    """The start of the response, and its body."""
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query,
        "headers": list(headers),
        "http_version": "1.1",
        "scheme": "http",
        "server": ("test", 80),
    }
    client = ApplicationCommunicator(ASGIHandler(), scope)
    await client.send_input({"type": "http.request", "body": content})
    start, body = await client.receive_output(10), b""
    while (message := await client.receive_output(10)).get("more_body"):
        body += message["body"]
    await client.wait(10)
    return start, body + message.get("body", b"")


async def test_the_api_starts_no_thread_of_its_own(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a thread was started")

    monkeypatch.setattr(sync, "ThreadPoolExecutor", refuse)
    assert (await answer("/healthz"))[0] == 200


@pytest.mark.parametrize(
    ("path", "method"),
    [("/healthz", "GET"), ("/v1/models", "GET"), ("/v1/nothing", "GET"), ("/metrics", "PUT")],
)
async def test_a_whole_answer_has_its_length(path, method):
    start, body = await exchange(path, method=method)
    assert dict(start["headers"])[b"Content-Length"] == b"%d" % len(body)


@pytest.fixture
def tenants_key(monkeypatch):
    """Headers with a valid key."""

    async def verify(self, secret):
        return Principal(1, 1, "abc", (), None)

    monkeypatch.setattr(KeyRing, "verify", verify)
    return [(b"authorization", b"Bearer sk-good")]


def refused(body):
    error = orjson.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error["code"]


@pytest.mark.parametrize("query", [b"a=\xff", b"\x80"])
async def test_a_query_that_is_not_utf8_is_refused(query):
    status, body = await answer("/v1/models", query=query)
    assert (status, refused(body)) == (400, "invalid_request")


STRANGE_TYPES = [
    "application/json; x*=nosuch''a",
    "application/json; x*=undefined''%41",
    "application/json; x*=idna''%41",
    "application/json; charset=base64",
    "application/json; charset=undefined",
    "multipart/form-data; boundary=b; charset=base64",
    "multipart/form-data; boundary=b; x*=nosuch''a",
    "; charset=utf-8; charset*0=a; charset*1*=b",
    "a/b;" + "x=y;" * 200,
]


@pytest.mark.represented_by("/v1/completions-application/json; charset=undefined")
@pytest.mark.parametrize("content_type", STRANGE_TYPES)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/files"])
async def test_any_content_type_gets_a_response(tenants_key, path, content_type):
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", b"100"),
        *tenants_key,
    ]
    part = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--\r\n'
    many = b"&".join(b"a" for _ in range(2000))
    for query in (b"", many):
        status, body = await answer(path, "POST", query, headers, part)
        assert (status, refused(body)) in (
            (400, "invalid_json"),
            (400, "missing_required_parameter"),
            (400, "invalid_request"),
            (415, "unsupported_media_type"),
        )


async def test_a_body_in_chunks_is_read(tenants_key):
    headers = [
        (b"content-type", b"application/json"),
        (b"transfer-encoding", b"chunked"),
        *tenants_key,
    ]
    body = orjson.dumps({"model": "nobodys", "prompt": [1]})
    status, text = await answer("/v1/completions", "POST", b"", headers, body)
    assert (status, refused(text)) == (404, "model_not_found")


@pytest.fixture
def finished_in():
    """The threads that were told that their request is over, and closed their connection."""
    threads = []

    def note(**_):
        threads.append(threading.current_thread())

    request_finished.connect(note)
    yield threads
    request_finished.disconnect(note)


@pytest.mark.django_db(transaction=True)
async def test_a_thread_that_used_the_database_closes_its_connection(finished_in):
    assert (await answer("/readyz"))[0] in (200, 503)  # which asks for migrations
    assert (await answer("/healthz"))[0] == 200
    (of_database,) = finished_in  # the other had nothing to tidy up
    assert of_database is not threading.main_thread()


async def test_it_closes_its_connection_after_a_hang_up_too(monkeypatch, finished_in):
    """On PostgreSQL, the connection is one of a pool of eight."""
    begun, may_end, used_by = threading.Event(), threading.Event(), []

    def query():
        used_by.append(threading.current_thread())
        begun.set()
        may_end.wait(10)

    async def slow(self, request):
        await sync_to_async(query)()

    monkeypatch.setattr(HealthView, "get", slow)
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/healthz",
        "query_string": b"",
        "headers": [],
    }
    client = ApplicationCommunicator(ASGIHandler(), scope)
    await client.send_input({"type": "http.request", "body": b""})
    assert await asyncio.to_thread(begun.wait, 10)
    await client.send_input({"type": "http.disconnect"})
    await asyncio.sleep(0.1)
    assert not finished_in  # the query still runs
    may_end.set()
    await client.wait(10)
    assert finished_in == used_by


async def test_it_closes_its_connection_when_its_stream_fails(monkeypatch, finished_in):
    used_by = []

    async def broken():
        await sync_to_async(lambda: used_by.append(threading.current_thread()))()
        yield b"a"
        raise ValueError("the file is gone")

    async def stream(self, request):
        return StreamingHttpResponse(broken())

    monkeypatch.setattr(HealthView, "get", stream)
    with pytest.raises(ValueError, match="the file is gone"):
        await answer("/healthz")
    assert finished_in == used_by


@pytest.mark.parametrize("path", ["/v1/completions", "/admin/"])
async def test_it_closes_its_connection_when_a_body_is_refused(path, finished_in):
    """The gateway looks for the key of a large body: a stranger can have it look."""
    used_by = []

    async def refuse():
        await sync_to_async(lambda: used_by.append(threading.current_thread()))()
        raise APIError("invalid_api_key")

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [],
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Django does not close what it has read
        with pytest.raises(APIError):
            await ASGIHandler()(scope, refuse, None)
        gc.collect()
    assert used_by
    assert finished_in == used_by


async def test_a_client_that_hangs_up_cancels_the_view(monkeypatch):
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def wait_for_ever(self, request):
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    monkeypatch.setattr(HealthView, "get", wait_for_ever)
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/healthz",
        "query_string": b"",
        "headers": [],
    }
    client = ApplicationCommunicator(ASGIHandler(), scope)
    await client.send_input({"type": "http.request", "body": b""})
    async with asyncio.timeout(10):
        await begun.wait()
        await client.send_input({"type": "http.disconnect"})
        await cancelled.wait()
    await client.wait(10)
    assert await client.receive_nothing()
