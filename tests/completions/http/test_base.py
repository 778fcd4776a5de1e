"""The asynchronous view: parsing, negotiation, errors, and responses without a thread."""

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction
from django.http import StreamingHttpResponse
from django.test import RequestFactory

from completions.http.base import LARGE_BODY, APIRequest, AsyncAPIView
from completions.http.bodies import JSONResponse
from tests.running import until

pytestmark = pytest.mark.usefixtures("fake_process")


class EchoView(AsyncAPIView):
    authenticated = False

    async def get(self, request: APIRequest) -> JSONResponse:
        return JSONResponse({"got": request.query_params.get("x")}, headers={"x-a": "b"})

    async def post(self, request: APIRequest) -> JSONResponse:
        return JSONResponse(request.data, status=201)

    async def delete(self, request: APIRequest) -> JSONResponse:
        return JSONResponse(status=204)

    async def patch(self, request: APIRequest) -> JSONResponse:
        raise ZeroDivisionError

    async def put(self, request: APIRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse([b"data: 1\n\n"], content_type="text/event-stream")


view = EchoView.as_view()
factory = RequestFactory()


async def call(method: str, body: Any = b"", **options: Any) -> Any:
    options.setdefault("content_type", "application/json")
    return await view(factory.generic(method, "/v1/x?x=1", body, **options))


async def post_error(body: bytes, **options: Any) -> tuple[int, str]:
    response = await call("POST", body, **options)
    return response.status_code, json.loads(response.content)["error"]["code"]


def test_the_view_is_a_coroutine_function() -> None:
    assert iscoroutinefunction(view)
    assert view.csrf_exempt  # type: ignore[attr-defined]


async def test_responses_leave_the_view_rendered() -> None:
    response = await call("GET")
    assert not hasattr(response, "render")  # Django would do it in a thread
    assert response.content == b'{"got":"1"}'
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["x-a"] == "b"


@pytest.mark.parametrize("accept", ["text/event-stream", "application/binary", "image/png;q=0.1"])
async def test_accept_is_ignored(accept: str) -> None:
    response = await call("GET", headers={"accept": accept})
    assert response.status_code == 200


async def test_other_methods() -> None:
    assert (await call("DELETE")).content == b""
    assert (await call("HEAD")).status_code == 200
    for method in ("OPTIONS", "TRACE"):
        response = await call(method)
        assert response.status_code == 405
        assert "GET" in response.headers["Allow"]
        assert json.loads(response.content)["error"]["code"] == "method_not_allowed"


async def test_streams_pass_through() -> None:
    assert (await call("PUT")).streaming


async def test_crashes_become_envelopes() -> None:
    response = await call("PATCH")
    assert response.status_code == 500
    assert json.loads(response.content)["error"]["type"] == "server_error"


async def test_a_json_body_reaches_the_handler() -> None:
    assert (await call("POST", b'{"a":[1,2.5,"\xc3\xa9"]}')).content == b'{"a":[1,2.5,"\xc3\xa9"]}'
    assert (await call("POST", b"")).content == b"{}"
    large = json.dumps({"a": "x" * LARGE_BODY}).encode()
    assert (await call("POST", large)).status_code == 201


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"null", b'{"a":1,"a":2}', b'{"a":NaN}', b'{"a":"\xff"}', b'{"a":"\\ud800"}'],
)
async def test_malformed_bodies(body: bytes) -> None:
    assert await post_error(body) == (400, "invalid_json")


async def test_a_large_malformed_body() -> None:
    assert await post_error(b'{"a":' + b" " * LARGE_BODY) == (400, "invalid_json")


async def test_only_json_bodies_are_accepted() -> None:
    assert (
        await call("POST", b"{}", content_type="application/json; charset=utf-8")
    ).status_code == 201
    for content_type in ("text/plain", "application/x-www-form-urlencoded", ""):
        code = await post_error(b"{}", content_type=content_type)
        assert code == (415, "unsupported_media_type")


async def test_body_limit(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.MAX_BODY_BYTES = 10
    assert (await call("POST", b'{"a": 123}')).status_code == 201
    assert await post_error(b'{"a": 1234}') == (413, "payload_too_large")


async def test_large_bodies_of_one_owner_are_held_one_at_a_time_until_they_are_checked() -> None:
    held, most, checked, let = 0, 0, 0, asyncio.Event()

    class SlowView(AsyncAPIView):
        authenticated = False

        async def post(self, request: APIRequest) -> JSONResponse:
            nonlocal held, most, checked
            held += 1
            most = max(most, held)
            await asyncio.sleep(0.02)
            held -= 1
            request.start_check()
            checked += 1
            await let.wait()  # what was checked runs, and waits for nobody
            return JSONResponse({})

    slow = SlowView.as_view()
    body = json.dumps({"a": "x" * LARGE_BODY})

    def send() -> Any:
        return slow(factory.generic("POST", "/v1/x", body, content_type="application/json"))

    answers = [asyncio.create_task(send()) for _ in range(4)]
    await until(lambda: checked == 4)
    let.set()
    assert [each.status_code for each in await asyncio.gather(*answers)] == [200] * 4
    assert most == 1


async def test_a_large_body_that_is_refused_gives_its_turn_back() -> None:
    for _ in range(4):
        status, code = await post_error(b"[" + b"1," * LARGE_BODY + b"1]")
        assert (status, code) == (400, "invalid_json")
