"""The paged K and V tensors in the layout of GPU kernels: token-major, heads innermost."""

from collections.abc import Callable
from enum import StrEnum

from torch import Tensor, nn

from workers.engine.core.layer_shape import LayerShape


class Way(StrEnum):
    """How a layer attends."""

    SPLIT = "split decode kernel"
    """Single tokens by the kernel in Triton, prompts by FlashAttention over gathered pages."""
    FLASH = "FlashAttention over pages"
    """Everything by ``varlen_attn``."""
    LATENTS = "latents by index"
    """Chosen latents by the kernel in Triton, anything else by torch operations."""
    GATHERED = "gathered pages"
    """Everything by torch operations over gathered pages."""


class TokenMajorLayer:
    """One layer's pages: ``key`` [blocks, block_size, heads, key_dim], ``value`` likewise. Where
    several tokens have an entry together, the entries of a block follow its tokens."""

    def __init__(
        self,
        shape: LayerShape,
        num_blocks: int,
        block_size: int,
        like: Tensor,
        way: Way,
        keeper: "TokenMajorLayer | None" = None,
    ) -> None:
        """``keeper`` has the pages, if they are another layer's."""
        self.num_lines = shape.num_lines(block_size)
        pages = (num_blocks, self.num_lines, shape.num_kv_heads)
        self.shape = shape
        self.way = way
        self.block_size = block_size
        self.key: Tensor = keeper.key if keeper else like.new_zeros(*pages, shape.key_dim)
        self.value: Tensor = keeper.value if keeper else like.new_zeros(*pages, shape.value_dim)

    @property
    def tokens(self) -> Tensor:
        """The keys [lines, dim] of a layer with one head."""
        return self.key.flatten(0, 2)

    @property
    def lines(self) -> tuple[Tensor, Tensor]:
        """The keys and the values [slots * heads, dim]."""
        return self.key.flatten(0, 2), self.value.flatten(0, 2)

    def as_lines(self) -> "TokenMajorLayer":
        """Return the same pages as if each line were the one token of a block, with one head."""
        own = self.shape
        shape = LayerShape(1, own.key_dim, own.value_dim)
        lines = TokenMajorLayer(shape, 0, 1, self.key, self.way)
        lines.key, lines.value = (each[:, None, None] for each in self.lines)
        return lines

    def find_lines(self, slots: Tensor, heads: Tensor) -> Tensor:
        """Return the lines of the tokens at ``slots`` for ``heads``, which broadcast."""
        return slots * self.shape.num_kv_heads + heads

    def write(self, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store ``key`` and ``value`` [tokens, heads, dim] at ``slots`` [tokens]."""
        slots = self.shape.find_lines(slots, self.block_size)
        self.key.flatten(0, 1).index_copy_(0, slots, key)
        self.value.flatten(0, 1).index_copy_(0, slots, value)

    def gather(self, block_table: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [rows, heads, tokens, dim] of ``block_table`` [rows, blocks]."""
        index = block_table.flatten()

        def take(pages: Tensor) -> Tensor:
            tokens = pages.index_select(0, index)
            return tokens.view(len(block_table), -1, *pages.shape[2:]).transpose(1, 2)

        return take(self.key), take(self.value)

    def scrub(self, blocks: list[int]) -> None:
        """Set blocks to zero."""
        self.key[blocks] = 0
        self.value[blocks] = 0


class TokenMajorCache:
    """The pages of all layers; block ``b`` of every layer belongs to the same tokens.

    ``like`` is a tensor of the wanted dtype and device; ``way_of`` returns how a layer of a given
    shape attends.
    """

    def __init__(
        self,
        shapes: dict[nn.Module, LayerShape],
        num_blocks: int,
        block_size: int,
        like: Tensor,
        way_of: Callable[[LayerShape], Way],
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.layers: dict[nn.Module, TokenMajorLayer] = {}
        for module, shape in shapes.items():
            keeper = None if shape.kept_by is None else self.layers[shape.kept_by]
            way = way_of(shape)
            self.layers[module] = TokenMajorLayer(shape, num_blocks, block_size, like, way, keeper)

    @property
    def is_bounded(self) -> bool:
        """Whether every layer decodes by a kernel that reads pages in place. Gathering would copy
        the longest context of every row within a captured step, and so does an indexer."""
        gathered = (Way.GATHERED, Way.LATENTS)
        return all(layer.way not in gathered for layer in self.layers.values())

    def scrub(self, blocks: list[int]) -> None:
        """Set blocks to zero, where a fault may have left values that are not finite."""
        for layer in self.layers.values():
            layer.scrub(blocks)
