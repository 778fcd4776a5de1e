"""A GGUF file's metadata and tensors, read in a fraction of a second.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. `gguf.GGUFReader` reads it
too, but makes an array of each of a tokenizer's 100,000 strings, which takes seconds.
"""

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf.quants import dequantize, quant_shape_to_byte_shape

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32
"""Bytes, where the metadata does not say."""
_FORMATS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor as the file stores it."""

    shape: tuple[int, ...]
    """Elements, the slowest dimension first."""
    kind: GGMLQuantizationType
    data: np.ndarray[Any, np.dtype[np.uint8]]

    def dequantized(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The values, shaped `shape`."""
        rows = self.data.reshape(quant_shape_to_byte_shape(self.shape, self.kind))
        values: np.ndarray[Any, np.dtype[np.float32]] = dequantize(rows, self.kind)
        return values


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Metadata by key, tensors by their names in the file."""

    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read(path: Path) -> GgufFile:
    """Read the metadata; tensors stay on disk until used. Raises OSError and ValueError."""
    with open(path, "rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        return _parse(content)
    except struct.error as error:
        raise ValueError(f"{path.name} ends before its metadata does") from error


def _parse(content: mmap.mmap) -> GgufFile:
    if content[:4] != _MAGIC:
        raise ValueError(f"a GGUF file starts with {_MAGIC!r}, this one with {content[:4]!r}")
    cursor = _Cursor(content, 4)
    version = cursor.number("I")
    if version not in _VERSIONS:
        raise ValueError(f"GGUF version {version} is not one of {_VERSIONS}")
    tensor_count, metadata_count = cursor.number("Q"), cursor.number("Q")
    metadata = {cursor.string(): cursor.value() for _ in range(metadata_count)}
    placed = [_Placed.read(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    start = -(-cursor.position // alignment) * alignment
    return GgufFile(metadata, {tensor.name: tensor.load(content, start) for tensor in placed})


@dataclass(frozen=True, slots=True)
class _Placed:
    """A tensor's entry in the table that follows the metadata."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    """Bytes from the start of the data."""

    @classmethod
    def read(cls, cursor: "_Cursor") -> "_Placed":
        name, dimensions = cursor.string(), cursor.number("I")
        sizes = [cursor.number("Q") for _ in range(dimensions)]  # the fastest dimension first
        kind = GGMLQuantizationType(cursor.number("I"))
        return cls(name, tuple(reversed(sizes)), kind, cursor.number("Q"))

    def load(self, content: mmap.mmap, start: int) -> GgufTensor:
        elements, (block, size) = int(np.prod(self.shape)), GGML_QUANT_SIZES[self.kind]
        # numpy raises ValueError where the file is too short.
        data = np.frombuffer(content, np.uint8, elements // block * size, start + self.offset)
        return GgufTensor(self.shape, self.kind, data)


class _Cursor:
    """Reads little-endian values one after the other."""

    def __init__(self, content: mmap.mmap, position: int) -> None:
        self._content = content
        self.position = position

    def number(self, kind: str) -> Any:
        """One value of the `struct` format `kind`."""
        return self._numbers(kind, 1)[0]

    def string(self) -> str:
        length = self.number("Q")
        raw = self._content[self.position : self.position + length]
        if len(raw) < length:
            raise struct.error
        self.position += length
        return raw.decode("utf-8")

    def value(self) -> Any:
        """A metadata value, which its type precedes: a number, a string or a list."""
        return self._value(GGUFValueType(self.number("I")))

    def _value(self, kind: GGUFValueType) -> Any:
        if kind is GGUFValueType.STRING:
            return self.string()
        if kind is not GGUFValueType.ARRAY:
            return self.number(_FORMATS[kind])
        element, count = GGUFValueType(self.number("I")), self.number("Q")
        if element in _FORMATS:
            return list(self._numbers(_FORMATS[element], count))
        read: Callable[[GGUFValueType], Any] = self._value
        return [read(element) for _ in range(count)]

    def _numbers(self, kind: str, count: int) -> tuple[Any, ...]:
        layout = f"<{count}{kind}"
        values = struct.unpack_from(layout, self._content, self.position)
        self.position += struct.calcsize(layout)
        return values
