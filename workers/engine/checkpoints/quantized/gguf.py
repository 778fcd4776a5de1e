"""GGUF files: a model's configuration and weights, translated to transformers' names.

A weight is read from the file on access, and its blocks are dequantized in float32.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gguf import LlamaFileType
from torch import Tensor

from workers.engine.checkpoints.quantized.gguf_architectures import (
    HEADS,
    KEY_HEADS,
    LAYER_TENSORS,
    TENSORS,
    Architecture,
    find_architecture,
    make_config,
)
from workers.engine.checkpoints.quantized.gguf_reader import read_gguf
from workers.engine.checkpoints.quantized.stored import Composed, Parts, Stored

FREQUENCIES = "rope_freqs.weight"
"""A tensor that becomes part of the configuration."""
_EMBEDDING = "token_embd.weight"
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""Metadata below `tokenizer.ggml`."""
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class GGUFFile:
    """A model in one file, or in the parts that gguf-split makes of it."""

    def __init__(self, path: Path, dtype: torch.dtype = torch.float32) -> None:
        """Matrices are read in ``dtype``. Raises OSError, and ValueError for a damaged file, a
        missing part or an unknown architecture."""
        self._metadata, self._tensors = read_gguf(path, dtype)
        self.name: str = self._value("general.architecture")
        self._of_model = _Metadata(self._metadata, path.name, self.name)
        self._tokens = _Metadata(self._metadata, path.name, "tokenizer.ggml")
        self._architecture = find_architecture(
            self.name, self._metadata.get("general.type"), self._of_model
        )

    @property
    def type_name(self) -> str:
        """The name of the quantization, such as ``Q4_K_M``; of files that do not state it, the
        type of most bytes."""
        with suppress(ValueError):
            stated = LlamaFileType(self._metadata.get("general.file_type", LlamaFileType.GUESSED))
            if stated is not LlamaFileType.GUESSED:
                return stated.name.removeprefix("MOSTLY_").removeprefix("ALL_")
        sizes: dict[str, int] = defaultdict(int)
        for tensor in self._tensors.values():
            sizes[tensor.kind.name] += tensor.num_bytes
        return max(sizes, key=sizes.__getitem__)

    def config(self) -> Any:
        """Return the configuration. Raises ValueError for missing metadata and unknown settings."""
        frequencies = self._tensors.get(FREQUENCIES)
        if _EMBEDDING not in self._tensors:
            raise ValueError(f"the GGUF file has no tensor {_EMBEDDING}")
        try:
            return make_config(
                self._architecture,
                self._of_model,
                self._tokens,
                vocab_size=self._tensors[_EMBEDDING].shape[0],
                tensors=self._tensors.keys(),
                frequencies=None if frequencies is None else frequencies[...],
            )
        except KeyError as error:
            key = f"{self.name}.{error.args[0]}"
            raise ValueError(f"the GGUF file has no metadata {key}") from error

    @property
    def end_token_ids(self) -> list[int]:
        """The tokens that end a text, a turn or a message, as the file names them."""
        ids = (self._tokens.get(key) for key in _ENDS)
        return [id for id in ids if id is not None]

    def weights(self) -> dict[str, Stored]:
        """Return the weights by their names in transformers. Raises ValueError for a tensor that
        belongs to no module."""
        parts: dict[str, dict[str, Stored]] = defaultdict(dict)
        for name, tensor in self._tensors.items():
            if name == FREQUENCIES:
                continue
            target, _, place = _name(name, self._architecture).partition("/")
            parts[target][place] = tensor
        return {
            name: Composed(name, dict(sorted(each.items())), partial(self._compose, name))
            for name, each in parts.items()
        }

    def _compose(self, name: str, parts: Parts) -> Tensor:
        first, *more = parts.values()
        values = torch.cat([first, *more], -2) if more else first
        if self._architecture.norms_plus_one and name.endswith("norm.weight"):
            return values - 1
        if self._architecture.interleaved and ".q_proj." in name:
            return _halve(values, self._heads(HEADS))
        if self._architecture.interleaved and ".k_proj." in name:
            return _halve(values, self._heads(KEY_HEADS))
        return values

    def _heads(self, key: str) -> int:
        return int(self._of_model.get(key, self._of_model[HEADS]))

    def _value(self, key: str) -> Any:
        """Raises ValueError."""
        if key not in self._metadata:
            raise ValueError(f"the GGUF file has no metadata {key}")
        return self._metadata[key]


class _Metadata(Mapping[str, Any]):
    """The metadata below ``prefix``. Some writers store a value for each layer: equal ones are read
    as one."""

    def __init__(self, fields: Mapping[str, Any], file: str, prefix: str) -> None:
        """``file`` appears in error messages."""
        self._fields = fields
        self._file, self._prefix = file, f"{prefix}."

    def __getitem__(self, key: str) -> Any:
        """Raises KeyError, and ValueError for values that differ."""
        name = self._prefix + key
        if name not in self._fields:
            raise KeyError(key)
        value = self._fields[name]
        if not isinstance(value, list):
            return value
        if not value or value != value[:1] * len(value):
            raise ValueError(
                f"{self._file} has {name} for each layer, {value}: only one value for all layers "
                "is read"
            )
        return value[0]

    def __iter__(self) -> Iterator[str]:
        names = (name for name in self._fields if name.startswith(self._prefix))
        return (name.removeprefix(self._prefix) for name in names)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _halve(values: Tensor, heads: int) -> Tensor:
    """Return rows (pair, half) of each head as rows (half, pair), as transformers rotates them."""
    by_pair = values.view(heads, -1, 2, *values.shape[1:])
    return by_pair.swapaxes(1, 2).reshape(values.shape)


def _name(name: str, architecture: Architecture) -> str:
    """Return a tensor's name in transformers. Raises ValueError."""
    layer = _LAYER.fullmatch(name)
    if layer is not None:
        part = {**LAYER_TENSORS, **architecture.layer_tensors}.get(layer[2])
        if part is not None and "/" not in part:
            return f"model.layers.{layer[1]}.{part}.{layer[3]}"
        if part is not None and layer[3] == "weight":
            return f"model.layers.{layer[1]}.{part}"
    part, _, kind = name.rpartition(".")
    if part not in TENSORS:
        raise ValueError(f"no tensor of the model takes {name!r} of the GGUF file")
    return f"{TENSORS[part]}.{kind}"
