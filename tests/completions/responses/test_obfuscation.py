"""Padding of chunks, so that their sizes hide the lengths of texts."""

import pytest

from completions.responses.sse import BLOCK, frame, obfuscation


@pytest.mark.parametrize("text", ["", "a", "é", "x" * 63, "x" * 64, "long " * 100, "\u2028"])
def test_a_chunk_is_filled_up_to_whole_blocks(text):
    chunk = {"choices": [{"text": text}]}
    padding = obfuscation(chunk)
    sent = frame({**chunk, "obfuscation": padding}).removeprefix(b"data: ").strip()
    assert len(sent) % BLOCK == 0
    assert obfuscation(chunk) == padding
