"""What a connection keeps of its latest response, and how an event becomes a body."""

from typing import Any

import orjson
import pytest

from completions.exceptions import APIError
from completions.http.socket_turns import KeptTurns, SocketTurns, read_event

ASKED = [{"type": "message", "role": "user", "content": "Hi"}]
SAID = {"type": "message", "role": "assistant", "content": "Ho"}
LATEST = {"id": "resp_1", "output": [SAID]}


def test_the_latest_response_is_kept() -> None:
    turns = SocketTurns(KeptTurns())
    turns.earlier = [SAID]
    turns.keep_asked(ASKED)
    turns.end(LATEST)
    assert orjson.loads(turns.find("resp_1") or b"") == [SAID, *ASKED, SAID]
    assert turns.find("resp_2") is None
    turns.end({"id": "resp_3", "output": []})  # which is stored
    assert turns.find("resp_1") is None
    assert turns.find("resp_3") is None


def test_what_a_failed_request_went_on_from_is_forgotten() -> None:
    turns = SocketTurns(KeptTurns())
    turns.keep_asked(ASKED)
    turns.end(LATEST)
    turns.end(None)  # it went on from nothing
    assert turns.find("resp_1")
    turns.end(None)
    assert turns.find("resp_1") is None


def test_connections_do_not_see_each_other_and_leave_nothing() -> None:
    kept = KeptTurns()
    turns = SocketTurns(kept)
    turns.keep_asked(ASKED)
    turns.end(LATEST)
    assert SocketTurns(kept).find("resp_1") is None
    turns.forget()
    assert kept.get("resp_1") is None


def test_the_oldest_is_forgotten_where_all_take_too_much() -> None:
    kept = KeptTurns(max_bytes=10)
    for name in ("a", "b", "c"):
        kept.put(name, b"1234")
    assert [kept.get(name) for name in ("a", "b", "c")] == [None, b"1234", b"1234"]
    kept.put("b", b"12345678")
    assert [kept.get(name) for name in ("b", "c")] == [b"12345678", None]
    kept.put("d", b"1" * 11)
    assert [kept.get(name) for name in ("b", "d")] == [None, None]


def test_an_event_becomes_the_body_of_a_stream() -> None:
    body: dict[str, Any] = {"type": "response.create", "generate": True, "input": "a"}
    read_event(body)
    assert body == {"input": "a", "stream": True}
    read_event([])  # refused with the body


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "type"),
        ({"type": ["a"]}, "type"),
        ({"stream": False}, "stream"),
        ({"stream": "yes"}, "stream"),
        ({"background": True}, "background"),
        ({"generate": False}, "generate"),
    ],
)
def test_other_events_are_refused_by_name(body: dict[str, Any], param: str) -> None:
    given = body if param == "type" else {"type": "response.create", **body}
    with pytest.raises(APIError) as raised:
        read_event(given)
    assert (raised.value.code, raised.value.param) == ("unsupported_value", param)
