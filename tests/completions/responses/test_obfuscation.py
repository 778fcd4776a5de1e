"""Padding of chunks, so that their sizes hide the lengths of texts."""

import orjson
import pytest

from completions.responses.sse import BLOCK, obfuscation


@pytest.mark.parametrize("text", ["", "a", "é", "x" * 63, "x" * 64, "long " * 100])
def test_a_chunk_is_filled_up_to_whole_blocks(text):
    chunk = {"choices": [{"text": text}]}
    padding = obfuscation(chunk)
    assert len(orjson.dumps({**chunk, "obfuscation": padding})) % BLOCK == 0
    assert obfuscation(chunk) == padding
