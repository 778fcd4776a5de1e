"""Frames and keep-alives."""

import json

import httpx
import openai
import pytest

from completions.responses import sse


def test_a_frame_has_an_id_only_on_request():
    assert sse.make_frame({"a": "ü"}) == 'data: {"a":"ü"}\n\n'.encode()
    assert sse.make_frame({}, 7) == b"id: 7\ndata: {}\n\n"


def test_the_official_client_survives_keep_alives_between_ids():
    from openai._streaming import SSEDecoder

    wire = sse.make_frame({"n": 1}, 1) + sse.KEEP_ALIVE + sse.make_frame({"n": 2}, 2) + sse.DONE
    decoded = list(SSEDecoder().iter_bytes(iter([wire])))
    assert [event.data for event in decoded] == ['{"n":1}', '{"n":2}', "[DONE]"]
    assert openai.__version__


@pytest.mark.parametrize("character", ["\x85", "\u2028", "\u2029"], ids=ascii)
def test_a_frame_is_one_line_for_readers_that_cut_at_unicode_line_breaks(character):
    data = {"text": f"a{character}b"}
    response = httpx.Response(200, content=sse.make_frame(data) + sse.DONE)
    event, blank, *_ = response.iter_lines()
    assert blank == ""
    assert json.loads(event.removeprefix("data: ")) == data
