"""Frames and keep-alives."""

import openai

from completions.responses import sse


def test_a_frame_has_an_id_only_on_request():
    assert sse.frame({"a": "ü"}) == 'data: {"a":"ü"}\n\n'.encode()
    assert sse.frame({}, 7) == b"id: 7\ndata: {}\n\n"


def test_the_official_client_survives_keep_alives_between_ids():
    from openai._streaming import SSEDecoder

    wire = sse.frame({"n": 1}, 1) + sse.KEEP_ALIVE + sse.frame({"n": 2}, 2) + sse.DONE
    decoded = list(SSEDecoder().iter_bytes(iter([wire])))
    assert [event.data for event in decoded] == ['{"n":1}', '{"n":2}', "[DONE]"]
    assert openai.__version__
