"""Tokenizers in the forms that other projects write: ranks of tiktoken, tekken.json, and models of
SentencePiece."""

import base64
import json
import struct
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import regex

TEXTS = [
    "the quick brown fox jumps over the lazy dog, and the dog's owner doesn't mind it.",
    "The QUICK brown Fox IT'S 12345 6,789.01 naïve café über 東京都 日本語のテキスト abc東京def",
    '{"name": "Ada", "tags": ["a", "b"]}\r\n\n  indented\t\ttext   \n',
    "emoji 😀👩‍👧 Ελλάδα العربية हिन्दी ǅemo",
]
TEKKEN_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_ranks(pattern: str, merges: int = 150) -> dict[bytes, int]:
    """Byte pair encoding of ``TEXTS``: single bytes, then the most frequent pairs."""
    pieces = [
        [bytes([byte]) for byte in piece.encode()]
        for text in TEXTS
        for piece in regex.findall(pattern, text, regex.V1)
    ]
    ranks = {bytes([byte]): byte for byte in range(256)}
    for _ in range(merges):
        counts = Counter(pair for piece in pieces for pair in pairwise(piece))
        (left, right), _ = max(counts.items(), key=lambda item: (item[1], item[0]))
        ranks[left + right] = len(ranks)
        pieces = [_merge(piece, left, right) for piece in pieces]
    return ranks


def _merge(piece: list[bytes], left: bytes, right: bytes) -> list[bytes]:
    merged: list[bytes] = []
    for part in piece:
        if merged and merged[-1] == left and part == right:
            merged[-1] = left + right
        else:
            merged.append(part)
    return merged


def write_ranks(path: Path, ranks: dict[bytes, int]) -> None:
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()]
    path.write_text("".join(lines))


def write_tekken(folder: Path, special: list[str] | None = None) -> dict[bytes, int]:
    """Write a small tekken.json and a config.json, and return the ranks."""
    ranks = train_ranks(TEKKEN_PATTERN)
    document: dict[str, Any] = {
        "config": {
            "pattern": TEKKEN_PATTERN, "num_vocab_tokens": len(ranks), "version": "v3",
            "default_vocab_size": 30 + len(ranks) - 10, "default_num_special_tokens": 30,
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
            for token, rank in ranks.items()
        ],
    }  # fmt: skip
    if special is not None:
        document["special_tokens"] = [
            {"rank": i, "token_str": text, "is_control": True} for i, text in enumerate(special)
        ]
    (folder / "tekken.json").write_text(json.dumps(document))
    (folder / "config.json").write_text(json.dumps({"model_type": "mistral"}))
    return ranks


def write_sentencepiece(
    path: Path,
    pieces: list[tuple[str, float, int]],
    model_type: int = 2,
    prefix: bool = True,
    character_map: bytes = b"",
) -> None:
    """Write a model of text, score and type of each piece."""
    data = b"".join(
        _field(1, _field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + bytes([24, kind]))
        for text, score, kind in pieces
    )
    data += _field(2, bytes([3 << 3, model_type]))
    data += _field(3, _field(1, b"identity") + _field(2, character_map) + bytes([3 << 3, prefix]))
    path.write_bytes(data)


def _field(number: int, value: bytes) -> bytes:
    size, head = len(value), bytes([number << 3 | 2])
    while size >= 128:
        head += bytes([size & 127 | 128])
        size >>= 7
    return head + bytes([size]) + value
