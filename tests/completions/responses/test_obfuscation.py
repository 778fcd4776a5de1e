"""Padding of chunks, so that their sizes hide the lengths of texts."""

import pytest

from completions.responses.sse import BLOCK, make_frame, make_obfuscation


@pytest.mark.parametrize("text", ["", "a", "é", "x" * 63, "x" * 64, "long " * 100, "\u2028"])
def test_a_chunk_is_filled_up_to_whole_blocks(text):
    chunk = {"choices": [{"text": text}]}
    padding = make_obfuscation(chunk)
    sent = make_frame({**chunk, "obfuscation": padding}).removeprefix(b"data: ").strip()
    assert len(sent) % BLOCK == 0
    assert make_obfuscation(chunk) == padding
