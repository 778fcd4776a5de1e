"""What an attention layer stores in the paged cache, and which earlier tokens it sees."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Visible:
    """A token sees itself and the ``window`` - 1 nearest earlier tokens, or all earlier ones. With
    a ``chunk``, positions are cut into chunks of that size, and a token sees only its own chunk."""

    window: int | None = None
    chunk: int | None = None

    def hides(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return whether the key at one position is hidden from the query at another."""
        hidden = keys > queries
        if self.window is not None:
            hidden |= keys <= queries - self.window
        if self.chunk is not None:
            hidden |= keys // self.chunk < queries // self.chunk
        return hidden

    def sees_all(self, length: int) -> bool:
        """Return whether nothing earlier is hidden within the first ``length`` tokens."""
        sizes = (self.window, self.chunk)
        return all(size is None or size >= length for size in sizes)


EVERYTHING = Visible()


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
    kept_by: nn.Module | None = None
    """The earlier layer whose pages hold the keys and values of this one too."""
    rate: int | None = None
    """So many successive tokens have an entry together, in the block of the last of them."""
    has_tokens: bool = True
    """Each token has a line of its own. A layer with a ``rate`` may have none."""

    def num_token_lines(self, block_size: int) -> int:
        """Return the number of lines in a block for tokens, which come before those of entries."""
        return block_size if self.has_tokens else 0

    def num_lines(self, block_size: int) -> int:
        """Return the number of lines in a block."""
        entries = 0 if self.rate is None else -(-block_size // self.rate)
        return self.num_token_lines(block_size) + entries

    def find_lines(self, slots: Tensor, block_size: int) -> Tensor:
        """Return the lines that hold the tokens at ``slots``."""
        num_lines = self.num_lines(block_size)
        if num_lines == block_size:
            return slots
        return slots // block_size * num_lines + slots % block_size

    def block_bytes(self, block_size: int, dtype: torch.dtype) -> int:
        """Return the bytes of a block in the layer's own pages."""
        if self.kept_by is not None:
            return 0
        line = self.num_kv_heads * (self.key_dim + self.value_dim) * dtype.itemsize
        return self.num_lines(block_size) * line
