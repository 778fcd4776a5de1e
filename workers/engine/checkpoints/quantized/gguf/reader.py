"""Reads the header of a GGUF file, and the values of its tensors piece by piece.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The reader of the gguf
package takes seconds for a vocabulary, whose texts are skipped here.
"""

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize
from numpy.typing import NDArray
from torch import Tensor
from transformers.integrations.gguf import dequant

from workers.engine.checkpoints.quantized.gguf.parts import first_part, part_paths

_MAGIC, _VERSIONS, _ALIGNMENT = b"GGUF", (2, 3), 32
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
"""Types of metadata."""
_LONGEST_ARRAY = 4096
"""Longer arrays, and arrays of texts, belong to the tokenizer, which reads them itself."""
_VALUES_AT_ONCE = 2**20
"""How many values are dequantized at a time: the steps of it then stay in a processor's cache."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredBlocks:
    """A tensor of a file. ``stored[...]`` reads its values."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    blocks: NDArray[np.uint8]
    """Its bytes [rows, bytes of a row]."""
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return int(self.blocks.nbytes)

    def __getitem__(self, index: Any) -> Tensor:
        """Return the values in ``dtype``, rounded from float32."""
        columns = self.shape[-1] if self.shape else 1
        values = torch.empty(len(self.blocks), columns, dtype=self.dtype)
        step = max(1, _VALUES_AT_ONCE // max(columns, 1))
        for begin in range(0, len(self.blocks), step):
            values[begin : begin + step] = self._expand(self.blocks[begin : begin + step])
        return values.view(self.shape)

    def _expand(self, rows: NDArray[np.uint8]) -> Tensor:
        """float32 [rows, columns]."""
        if int(self.kind) in dequant.GGML_BLOCK:  # twice as fast
            flat = torch.from_numpy(rows.copy()).flatten()
            expanded: Tensor = dequant.dequantize(flat, int(self.kind))
            return expanded.view(len(rows), -1)
        return torch.from_numpy(dequantize(rows, self.kind).copy()).view(len(rows), -1)


def read_gguf(path: Path, dtype: torch.dtype) -> tuple[dict[str, Any], dict[str, StoredBlocks]]:
    """Return the metadata and the tensors of a model, whose first file is ``path``; matrices are
    read in ``dtype``. Raises OSError, and ValueError for a damaged file or a missing part."""
    metadata, tensors = _read_part(path, dtype)
    count = metadata.get("split.count") or 1
    number = metadata.get("split.no")
    if isinstance(number, int) and number:
        first = first_part(path)
        raise ValueError(
            f"{path.name} is part {number + 1} of {count}: name the first part"
            + (f", {first.name}" if first else "")
        )
    parts = part_paths(path)
    if len(parts) != count:
        raise ValueError(
            f"{path.name} is the first of {count} parts, whose names must end in "
            f"-00001-of-{count:05}.gguf, as llama.cpp's gguf-split names them"
        )
    for part in parts[1:]:
        if not part.is_file():
            raise ValueError(f"{part.name} is missing: all {count} parts belong into one folder")
        tensors |= _read_part(part, dtype)[1]
    expected = metadata.get("split.tensors.count", len(tensors))
    if len(tensors) != expected:
        raise ValueError(f"{path.name} and its parts have {len(tensors)} of {expected} tensors")
    return metadata, tensors


def _read_part(path: Path, dtype: torch.dtype) -> tuple[dict[str, Any], dict[str, StoredBlocks]]:
    try:
        with open(path, "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return _Header(data, dtype).read()
    except (ValueError, OverflowError, MemoryError, RecursionError, struct.error) as error:
        raise ValueError(f"{path.name} is not a whole GGUF file: {error}") from error


class _Header:
    """What stands before the data, read from the front."""

    def __init__(self, data: mmap.mmap, dtype: torch.dtype) -> None:
        self._data, self._dtype, self._at = data, dtype, 0

    def read(self) -> tuple[dict[str, Any], dict[str, StoredBlocks]]:
        if self._bytes(4) != _MAGIC:
            raise ValueError("it does not begin with GGUF")
        version = self._number("I")
        if version not in _VERSIONS:
            raise ValueError(f"its version is {version}, and versions 2 and 3 are read")
        num_tensors, num_values = self._number("Q"), self._number("Q")
        metadata: dict[str, Any] = {}
        for _ in range(num_values):
            name = self._text()
            value = self._value(self._number("I"))
            if value is not None:
                metadata[name] = value
        entries = [self._entry() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"its general.alignment is {alignment!r}, not a positive integer")
        begin = -(-self._at // alignment) * alignment
        return metadata, {entry[0]: self._tensor(begin, *entry) for entry in entries}

    def _entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text()
        dims = [self._number("Q") for _ in range(self._number("I"))]
        return name, tuple(reversed(dims)), self._number("I"), self._number("Q")

    def _tensor(
        self, begin: int, name: str, shape: tuple[int, ...], number: int, offset: int
    ) -> StoredBlocks:
        kind = GGMLQuantizationType(number)
        values, size = GGML_QUANT_SIZES[kind]
        columns = shape[-1] if shape else 1
        if columns % values:
            raise ValueError(f"{name} has rows of {columns} values in blocks of {values}")
        row, rows = columns // values * size, prod(shape[:-1])
        if begin + offset + row * rows > len(self._data):
            raise ValueError(f"the data of {name} is cut off")
        raw = np.frombuffer(self._data, np.uint8, row * rows, begin + offset)
        dtype = self._dtype if len(shape) > 1 else torch.float32
        return StoredBlocks(name, shape, kind, raw.reshape(rows, row), dtype)

    def _value(self, kind: int) -> Any:
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            raise ValueError(f"metadata has the type {kind}")
        kind, count = self._number("I"), self._number("Q")
        if kind in _NUMBERS:
            size = struct.calcsize(f"<{_NUMBERS[kind]}")
            data = self._bytes(size * count)
            is_kept = count <= _LONGEST_ARRAY
            return list(struct.unpack(f"<{count}{_NUMBERS[kind]}", data)) if is_kept else None
        for _ in range(count):
            if kind == _STRING:
                length = self._number("Q")
                self._at += length
            else:
                self._value(kind)
        return None

    def _number(self, form: str) -> Any:
        form = f"<{form}"
        (number,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return number

    def _text(self) -> str:
        return self._bytes(self._number("Q")).decode()

    def _bytes(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise ValueError("its header is cut off")
        data = self._data[self._at : end]
        self._at = end
        return data
