"""Chunks of like size: who only sees how long the pieces of an encrypted stream are learns little
about the tokens in them."""

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

BLOCK = 64
"""Bytes to a multiple of which a chunk is filled up."""


def obfuscation(chunk: Mapping[str, Any]) -> str:
    """What brings the JSON of a chunk to a multiple of BLOCK bytes once it is in it.

    A function of the chunk, so that a stream that is read again is the same.
    """
    written = orjson.dumps({**chunk, "obfuscation": ""})
    return hashlib.shake_256(written).hexdigest(BLOCK)[: -len(written) % BLOCK]
