"""The attention of a device: its name, its cache, and its layout of a flat batch.

A model runs through the attention function of one device; each has its own cache layout and its
own kind of metadata.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from workers.engine.core.layer_shape import LayerShape


class Part(NamedTuple):
    """``size`` tokens of one sequence from ``position`` on, and its blocks up to the last."""

    position: int
    size: int
    blocks: list[int]


class AttentionBackend(Protocol):
    """What reading, checking and running a model need of a device."""

    @property
    def name(self) -> str:
        """What computes a model's modules: ``torch`` or ``cuda``."""

    @property
    def attention(self) -> str:
        """The name under which transformers knows the attention function."""

    @property
    def fuses(self) -> bool:
        """Whether it has kernels for what modules compute one operation after the other."""

    @property
    def has_native_forward(self) -> bool:
        """Whether usual decoders have a forward pass that bypasses their modules."""

    @property
    def make_runner(self) -> Callable[..., Any]:
        """Makes the runner of a paged model, given what was loaded and the settings."""

    def make_for_cpu(self) -> "AttentionBackend":
        """Return the same attention for tensors in main memory."""

    def simplify(self) -> bool:
        """Make later caches without the currently preferred kernel. False if none is left."""

    def make_cache(
        self,
        shapes: dict[nn.Module, LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
    ) -> Any:
        """Return an empty cache for these layers."""

    def batch(self, cache: Any, parts: list[Part], block_size: int) -> Any:
        """Return the metadata of a flat batch of these parts, single tokens first."""
