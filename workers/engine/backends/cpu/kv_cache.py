"""The paged K and V tensors of every attention layer."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from workers.engine.backends.base.host_memory import lazy_zeros
from workers.engine.core.layer_shape import LayerShape

KEYS_TOGETHER = 16
"""So many successive tokens of a block have their packed keys side by side."""


def pack_keys(shapes: Mapping[nn.Module, LayerShape]) -> dict[nn.Module, LayerShape]:
    """Shapes whose keys are stored as the C forward multiplies them."""
    return {module: replace(shape, packs_keys=True) for module, shape in shapes.items()}


class LayerCache:
    """One layer's pages, head-major: ``key`` [heads * blocks, block_size * key_dim], so that the
    blocks of a sequence, gathered for one head, are its keys in order. Where several tokens have an
    entry together, the entries of a block are lines after those of its tokens.

    A block of packed keys is [block_size / 16][key_dim / 2][16][2]: a weight of 16 columns, which
    are tokens, with pairs of inputs side by side."""

    def __init__(
        self,
        shape: LayerShape,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        keeper: "LayerCache | None" = None,
    ) -> None:
        """``keeper`` has the pages, if they are another layer's."""
        self.shape = shape
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_lines = num_lines = shape.num_lines(block_size)

        def pages(dim: int) -> Tensor:
            return lazy_zeros((shape.num_kv_heads * num_blocks, num_lines * dim), dtype)

        self.key: Tensor = keeper.key if keeper else pages(shape.key_dim)
        self.value: Tensor = keeper.value if keeper else pages(shape.value_dim)

    def write(self, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store ``key`` and ``value`` [tokens, heads, dim] at ``slots`` [tokens]."""
        heads, dim = self.shape.num_kv_heads, self.shape.key_dim
        slots = self.shape.find_lines(slots, self.block_size)
        values = self.value.view(heads, self.num_blocks * self.num_lines, self.shape.value_dim)
        values.index_copy_(1, slots, value.transpose(0, 1))
        if self.shape.packs_keys:
            packed = self.key.view(heads, -1, dim // 2, KEYS_TOGETHER, 2)
            pairs = key.reshape(len(slots), heads, dim // 2, 2)
            packed[:, slots // KEYS_TOGETHER, :, slots % KEYS_TOGETHER] = pairs
        else:
            self.key.view(heads, -1, dim).index_copy_(1, slots, key.transpose(0, 1))

    @property
    def tokens(self) -> Tensor:
        """The keys [lines, dim] of a layer with one head."""
        return self.key.view(self.num_blocks * self.num_lines, self.shape.key_dim)

    @property
    def lines(self) -> tuple[Tensor, Tensor]:
        """The keys and the values [heads * slots, dim]."""
        shape = self.shape
        return self.key.view(-1, shape.key_dim), self.value.view(-1, shape.value_dim)

    def find_lines(self, slots: Tensor, heads: Tensor) -> Tensor:
        """Return the lines of the tokens at ``slots`` for ``heads``, which broadcast."""
        return heads * (self.num_blocks * self.block_size) + slots

    def head_major(self, tables: Tensor) -> Tensor:
        """Return the index [heads * rows * blocks] of block tables [rows, blocks] in the pages."""
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
            of_heads = (self.shape.num_kv_heads, self.num_blocks, pages.shape[1])
            pages.view(of_heads)[:, blocks] = 0


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
        self.layers: dict[nn.Module, LayerCache] = {}
        for module, shape in shapes.items():
            keeper = None if shape.kept_by is None else self.layers[shape.kept_by]
            self.layers[module] = LayerCache(shape, num_blocks, block_size, dtype, keeper)

    def scrub(self, blocks: list[int]) -> None:
        """Forget the contents of blocks, where a fault may have left values that are not finite:
        a later owner's masked positions are multiplied by zero, and zero times NaN is NaN."""
        for layer in self.layers.values():
            layer.scrub(blocks)
