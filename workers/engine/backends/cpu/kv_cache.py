"""The paged K and V tensors of every attention layer."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from workers.engine.backends.base.visibility import EVERYTHING, Visible
from workers.engine.exceptions import UnsupportedModel

KEYS_TOGETHER = 16
"""So many successive tokens of a block have their packed keys side by side."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Heads and sizes of one attention layer's keys and values, and its attention rule."""

    num_kv_heads: int
    key_dim: int
    value_dim: int
    visible: Visible = EVERYTHING
    has_sinks: bool = False
    """Each head's weights include one for a sink, which is not a token."""
    is_capped: bool = False
    """Scores are capped before they become weights."""
    packs_keys: bool = False
    """Keys are stored as the C forward multiplies them."""

    def token_bytes(self, dtype: torch.dtype) -> int:
        return self.num_kv_heads * (self.key_dim + self.value_dim) * dtype.itemsize


def pack_keys(shapes: Mapping[nn.Module, LayerShape]) -> dict[nn.Module, LayerShape]:
    """Shapes whose keys are stored as the C forward multiplies them."""
    return {module: replace(shape, packs_keys=True) for module, shape in shapes.items()}


@dataclass(frozen=True, slots=True)
class AttentionRule:
    """How one layer turns scores into weights."""

    scale: float
    visible: Visible
    softcap: float | None
    sinks: Tensor | None = None
    """A score per head [heads] that counts in the sum of weights and has no value (Xiao et al.,
    "Efficient streaming language models with attention sinks", 2023)."""

    @classmethod
    def pop(cls, options: dict[str, Any], head_dim: int, visible: Visible | None) -> Self:
        """Read the rule from an attention layer's arguments. ``visible`` is the model's mask;
        without a mask, the arguments alone define the rule."""
        scaling = options.pop("scaling", None)
        window = options.pop("sliding_window", None)
        return cls(
            scale=head_dim**-0.5 if scaling is None else scaling,
            visible=Visible(window) if visible is None else visible,
            softcap=options.pop("softcap", None),
            sinks=options.pop("s_aux", None),
        )


class CacheProbe:
    """Stands in for the cache in a first forward of a few tokens, and records which modules attend,
    by which rules, which shapes they store, and their keys [tokens, heads, dim]."""

    def __init__(self) -> None:
        self.shapes: dict[nn.Module, LayerShape] = {}
        self.rules: dict[nn.Module, AttentionRule] = {}
        self.keys: dict[nn.Module, Tensor] = {}
        self.positionless: set[nn.Module] = set()
        """Modules that attend and whose keys do not depend on positions."""

    def note(self, module: nn.Module, key: Tensor, value: Tensor, rule: AttentionRule) -> None:
        """Record ``key`` and ``value`` [tokens, heads, dim], which a cache would store."""
        if module in self.shapes:
            raise UnsupportedModel(f"{type(module).__name__} attends more than once per forward")
        self.shapes[module] = LayerShape(
            key.shape[1],
            key.shape[2],
            value.shape[2],
            rule.visible,
            rule.sinks is not None,
            rule.softcap is not None,
        )
        self.rules[module] = rule
        self.keys[module] = key


class LayerCache:
    """One layer's pages, head-major: ``key`` [heads * blocks, block_size * key_dim], so that the
    blocks of a sequence, gathered for one head, are its keys in order.

    A block of packed keys is [block_size / 16][key_dim / 2][16][2]: a weight of 16 columns, which
    are tokens, with pairs of inputs side by side."""

    def __init__(self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype):
        self.shape = shape
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.key = lazy_zeros((shape.num_kv_heads * num_blocks, block_size * shape.key_dim), dtype)
        self.value = lazy_zeros(
            (shape.num_kv_heads * num_blocks, block_size * shape.value_dim), dtype
        )

    def write(self, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store ``key`` and ``value`` [tokens, heads, dim] at ``slots`` [tokens]."""
        heads, dim = self.shape.num_kv_heads, self.shape.key_dim
        values = self.value.view(heads, -1, self.shape.value_dim)
        values.index_copy_(1, slots, value.transpose(0, 1))
        if self.shape.packs_keys:
            packed = self.key.view(heads, -1, dim // 2, KEYS_TOGETHER, 2)
            pairs = key.reshape(len(slots), heads, dim // 2, 2)
            packed[:, slots // KEYS_TOGETHER, :, slots % KEYS_TOGETHER] = pairs
        else:
            self.key.view(heads, -1, dim).index_copy_(1, slots, key.transpose(0, 1))

    def head_major(self, tables: Tensor) -> Tensor:
        """The index [heads * rows * blocks] of block tables [rows, blocks] in the pages."""
        first = torch.arange(self.shape.num_kv_heads)[:, None] * self.num_blocks
        return (first + tables.flatten()).flatten()

    def gather(self, index: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
        """Keys and values [heads * num_rows, tokens, dim] at an index that :meth:`head_major` made
        of the block tables of ``num_rows`` sequences."""
        rows, dim = self.shape.num_kv_heads * num_rows, self.shape.key_dim
        keys = self.key.index_select(0, index)
        if self.shape.packs_keys:
            keys = keys.view(-1, dim // 2, KEYS_TOGETHER, 2).transpose(1, 2).reshape(rows, -1, dim)
        return (
            keys.view(rows, -1, dim),
            self.value.index_select(0, index).view(rows, -1, self.shape.value_dim),
        )

    def scrub(self, blocks: list[int]) -> None:
        """Set blocks to zero."""
        for pages in (self.key, self.value):
            pages.view(self.shape.num_kv_heads, self.num_blocks, -1)[:, blocks] = 0


class KVCache:
    """The pages of all layers; block ``b`` of every layer belongs to the same tokens."""

    def __init__(
        self,
        shapes: dict[nn.Module, LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.layers = {
            module: LayerCache(shape, num_blocks, block_size, dtype)
            for module, shape in shapes.items()
        }

    def scrub(self, blocks: list[int]) -> None:
        """Forget the contents of blocks, where a fault may have left values that are not finite:
        a later owner's masked positions are multiplied by zero, and zero times NaN is NaN."""
        for layer in self.layers.values():
            layer.scrub(blocks)


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose memory the system provides page by page, as they are first written."""
    raw = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)
