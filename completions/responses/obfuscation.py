"""Padding of chunks, so that the sizes of an encrypted stream's pieces say little about the tokens
in them."""

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

BLOCK = 64
"""Chunks are padded to a multiple of this many bytes."""


def obfuscation(chunk: Mapping[str, Any]) -> str:
    """The value of the field `obfuscation` that pads a chunk's JSON to a multiple of BLOCK bytes.

    It depends on the chunk alone, so that a stream that is read again is the same.
    """
    written = orjson.dumps({**chunk, "obfuscation": ""})
    return hashlib.shake_256(written).hexdigest(BLOCK)[: -len(written) % BLOCK]
