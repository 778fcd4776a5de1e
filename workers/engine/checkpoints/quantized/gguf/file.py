"""GGUF files: a model's configuration and weights, translated to transformers' names.

A weight is read from the file on access, and its blocks are dequantized in float32.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gguf import LlamaFileType
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor

from workers.engine.checkpoints.quantized.gguf import edits
from workers.engine.checkpoints.quantized.gguf.architecture import (
    FACTORS,
    Architecture,
    Metadata,
    Source,
)
from workers.engine.checkpoints.quantized.gguf.config import EMBEDDING, make_config
from workers.engine.checkpoints.quantized.gguf.names import LAYER_TENSORS, TENSORS
from workers.engine.checkpoints.quantized.gguf.reader import read_gguf
from workers.engine.checkpoints.quantized.gguf.variants import find_architecture
from workers.engine.checkpoints.quantized.stored import Composed, Parts, Stored

_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""Metadata below `tokenizer.ggml`."""
_LAYER = re.compile(r"blk\.(\d+)\.(.+)")
_KINDS = ("weight", "bias")


class GGUFFile:
    """A model in one file, or in the parts that gguf-split makes of it."""

    def __init__(self, path: Path, dtype: torch.dtype = torch.float32) -> None:
        """Matrices are read in ``dtype``. Raises OSError, and ValueError for a damaged file, a
        missing part or an unknown architecture."""
        self._metadata, self._tensors = read_gguf(path, dtype)
        self.name: str = self._value("general.architecture")
        self._source = Source(
            Metadata(self._metadata, path.name, self.name),
            Metadata(self._metadata, path.name, "tokenizer.ggml"),
            {name: tensor.shape for name, tensor in self._tensors.items()},
            {name: self._tensors[name][...] for name in FACTORS if name in self._tensors},
        )
        self._architecture = find_architecture(
            self.name, self._metadata.get("general.type"), self._source
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
        """Return the configuration. Raises ValueError for missing or wrong metadata, and for
        unknown settings."""
        if EMBEDDING not in self._tensors:
            raise ValueError(f"the GGUF file has no tensor {EMBEDDING}")
        try:
            return make_config(self._architecture, self._source)
        except KeyError as error:
            key = f"{self.name}.{error.args[0]}"
            raise ValueError(f"the GGUF file has no metadata {key}") from error
        except (TypeError, ArithmeticError, StrictDataclassError) as error:
            message = f"the metadata {self.name} of the GGUF file makes no model: {error}"
            raise ValueError(message) from error

    @property
    def end_token_ids(self) -> list[int]:
        """The tokens that end a text, a turn or a message, as the file names them."""
        ids = (self._source.tokens.get(key) for key in _ENDS)
        return [id for id in ids if id is not None]

    def weights(self) -> dict[str, Stored]:
        """Return the weights by their names in transformers. Raises ValueError for a tensor that
        belongs to no module."""
        parts: dict[str, dict[str, Stored]] = defaultdict(dict)
        num_layers = self._source.num_layers
        for name, tensor in self._tensors.items():
            layer = _LAYER.fullmatch(name)
            if name in FACTORS or (layer and int(layer[1]) >= num_layers):
                continue  # positions, or a block that predicts further tokens
            target, _, place = _name(name, self._architecture).partition("/")
            parts[target][place] = tensor
        return {
            name: Composed(name, dict(sorted(each.items())), partial(self._compose, name))
            for name, each in parts.items()
        }

    def _compose(self, name: str, parts: Parts) -> Tensor:
        own = self._architecture.edits.items()
        edit = next((edit for end, edit in own if name.endswith(end)), edits.join)
        return edit(list(parts.values()), self._source)

    def _value(self, key: str) -> Any:
        """Raises ValueError."""
        if key not in self._metadata:
            raise ValueError(f"the GGUF file has no metadata {key}")
        return self._metadata[key]


def _name(name: str, architecture: Architecture) -> str:
    """Return a tensor's name in transformers. Raises ValueError."""
    layer = _LAYER.fullmatch(name)
    if layer is not None:
        names = {**LAYER_TENSORS, **architecture.layer_tensors}
        target = _find(layer[2], names)
        prefix = f"{architecture.layers}.{layer[1]}."
    else:
        target, prefix = _find(name, {**TENSORS, **architecture.tensors}), ""
    if target is None:
        raise ValueError(f"no tensor of the model takes {name!r} of the GGUF file")
    return prefix + target


def _find(name: str, names: Mapping[str, str]) -> str | None:
    """Return what stands for a tensor's whole name, or for its name without its kind. Parts of
    experts are weights only."""
    if name in names:
        return names[name]
    stem, _, kind = name.rpartition(".")
    target = names.get(stem)
    if target is None or kind not in _KINDS:
        return None
    if "/" in target:
        return target if kind == "weight" else None
    return f"{target}.{kind}"
