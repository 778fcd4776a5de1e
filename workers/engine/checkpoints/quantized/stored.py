"""A checkpoint's stored tensors, and weights that are composed of several of them when read."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any, Protocol

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from torch import Tensor

_WHOLE = "model.safetensors"

Parts = Mapping[str, Tensor]
"""The tensors that a weight is stored as, by their names below its module."""


class UnreadableWeightsError(ValueError):
    """A checkpoint's files are damaged or not understood: no other way of reading them helps."""


class Stored(Protocol):
    """A tensor that is read from its file by ``stored[...]``."""

    def __getitem__(self, index: EllipsisType, /) -> Tensor: ...


class Composed:
    """A weight composed of stored parts, anew at each ``composed[...]``: nothing is cached."""

    def __init__(
        self, name: str, parts: Mapping[str, Stored], make: Callable[[Parts], Tensor]
    ) -> None:
        """``name`` appears in error messages."""
        self._name, self._parts, self._make = name, parts, make

    @torch.no_grad()
    def __getitem__(self, index: EllipsisType) -> Tensor:
        """Raises UnreadableWeightsError for parts that are missing or do not fit together."""
        parts = {name: part[...] for name, part in self._parts.items()}
        try:
            return self._make(parts)
        except (KeyError, IndexError, ValueError, RuntimeError) as error:
            shapes = ", ".join(f"{name} {list(part.shape)}" for name, part in parts.items())
            raise UnreadableWeightsError(
                f"{self._name} of {shapes} cannot be read: {error}"
            ) from error


class _Latest(threading.local):
    """The tensor that a thread has read last, and what it was read from."""

    source: Stored | None = None
    tensor: Tensor | None = None


class Divisible:
    """A stored tensor whose shape may be asked for, and parts of it. It is then read whole: parts
    of packed numbers may begin anywhere. Only the latest tensor of a thread is kept, since the
    shape is asked for first."""

    def __init__(self, stored: Stored, latest: _Latest) -> None:
        self._stored, self._latest = stored, latest

    def get_shape(self) -> list[int]:
        return list(self._whole().shape)

    def __getitem__(self, index: Any) -> Tensor:
        return self._whole()[index].clone()  # without the rest

    def _whole(self) -> Tensor:
        if self._latest.source is not self._stored or self._latest.tensor is None:
            self._latest.source, self._latest.tensor = self._stored, self._stored[...]
        return self._latest.tensor


def divisible(tensors: Mapping[str, Stored]) -> dict[str, Stored]:
    """Return the same tensors, of which transformers can read parts, as it does for each rank."""
    latest = _Latest()
    return {
        name: stored if hasattr(stored, "get_shape") else Divisible(stored, latest)
        for name, stored in tensors.items()
    }


def open_tensors(path: str | Path) -> dict[str, Stored]:
    """Return all tensors of a folder or a hub repository, not read yet.

    Raises OSError and UnreadableWeightsError where there are none, or for a file that is cut off.
    """
    folder = Path(path)
    if not folder.is_dir():
        folder = Path(snapshot_download(str(path), allow_patterns=["*.safetensors", "*.json"]))
    tensors: dict[str, Stored] = {}
    for file in _files(folder):
        opened: Any
        try:
            opened = safe_open(file, framework="pt")
        except SafetensorError as error:
            raise UnreadableWeightsError(
                f"{file.name} is not a whole safetensors file: fetch it again ({error})"
            ) from error
        tensors.update({name: opened.get_slice(name) for name in opened.keys()})  # noqa: SIM118
    if not tensors:
        raise UnreadableWeightsError(f"{folder} holds no *.safetensors")
    return tensors


def _files(folder: Path) -> list[Path]:
    """Return the files that transformers reads. Others may hold the same weights under other
    names."""
    index = folder / f"{_WHOLE}.index.json"
    if index.is_file():
        names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        return [folder / name for name in sorted(names)]
    whole = folder / _WHOLE
    return [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))


def compose(
    tensors: Mapping[str, Stored],
    suffixes: Sequence[str],
    weight: str,
    make: Callable[[Parts], Tensor],
) -> dict[str, Stored]:
    """Return the tensors, where weights that ``make`` composes replace their parts.

    The names of a weight's parts have a common prefix and end in ``suffixes``; the weight's name is
    that prefix and ``weight``. The parts include the first of ``suffixes`` and at least one more.
    All other tensors stay unchanged.
    """
    kept = dict(tensors)
    first = suffixes[0]
    for name in [name for name in tensors if name.endswith(first)]:
        begin = name.removesuffix(first)
        parts = {end: tensors[begin + end] for end in suffixes if begin + end in tensors}
        if len(parts) > 1:
            for end in parts:
                del kept[begin + end]
            kept[begin + weight] = Composed(begin + weight, parts, make)
    return kept
