"""GGUF files whose header or metadata are damaged are refused."""

import struct
from pathlib import Path

import pytest

from tests.workers.engine.checkpoints.quantized.gguf.small_files import tiny_model, write_gguf
from workers.engine.checkpoints.quantized.gguf.file import GGUFFile


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (_text("general.alignment") + struct.pack("<II", 4, 0), "general.alignment is 0"),
        (
            _text("general.alignment") + struct.pack("<I", 8) + _text("x"),
            "general.alignment is 'x'",
        ),
        (_text("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9999, "recursion"),
        (_text("a") + struct.pack("<I", 9) + struct.pack("<IQ", 4, 2**62), "cut off"),
        (_text("split.no") + struct.pack("<I", 8) + _text("x"), "no metadata general.architecture"),
    ],
)
def test_a_damaged_header_is_refused(tmp_path: Path, value: bytes, message: str) -> None:
    source = tmp_path / "a.gguf"
    source.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + value)
    with pytest.raises(ValueError, match=message):
        GGUFFile(source)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("embedding_length", "x"),
        ("embedding_length", 1),
        ("context_length", "x"),
        ("attention.head_count", 0),
        ("block_count", "x"),
        ("block_count", 2**40),
        ("block_count", 0),
    ],
)
def test_wrong_metadata_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: object
) -> None:
    file = GGUFFile(write_gguf(tmp_path / "a.gguf", "llama", tiny_model("llama")))
    monkeypatch.setitem(file._metadata, f"llama.{key}", value)
    with pytest.raises(ValueError, match=r"."):
        file.config()
