"""Three sequences over scattered pages of four tokens: two that decode, one with a chunk of five
tokens after seventeen others."""

from typing import Any

import torch
from torch import Tensor

from workers.engine.backends.sparse.rows import RowGroup

LENGTHS = (17, 9, 22)
TABLES = [[3, 9, 1, 14, 7], [2, 11, 5, 0, 0], [4, 6, 8, 10, 12, 13]]
OWNERS = [0, 1, 2, 2, 2, 2, 2]
POSITIONS = [16, 8, 17, 18, 19, 20, 21]
"""Of each row: its sequence, and its place there."""


class Metadata:
    """What attention needs of a forward with the three sequences."""

    def __init__(self) -> None:
        self.cache: Any = None
        self.slots = torch.zeros(0)

    def row_groups(self, block_size: int) -> list[RowGroup]:
        assert block_size == 4
        return row_groups()

    def slot_kernel(self, _layer: Any, _rank: int) -> None:
        """As on a CPU."""

    def line_kernel(self, _layer: Any) -> None:
        """As on a CPU."""


def row_groups() -> list[RowGroup]:
    return [
        RowGroup(0, 2, torch.tensor(TABLES[:2]), torch.tensor(POSITIONS[:2]), 4),
        RowGroup(2, 7, torch.tensor(TABLES[2:]), torch.tensor(POSITIONS[2:]), 4),
    ]


def store(layer: Any, keys: list[Tensor], values: list[Tensor]) -> None:
    """Write the keys and values [tokens, heads, dim] of each sequence. What no row may see is large
    but finite, as in pages that were used before."""
    every = torch.arange(16 * 4)
    shape = (len(every), *keys[0].shape[1:])
    layer.write(every, torch.full(shape, 1e9), torch.full((*shape[:2], values[0].shape[2]), 1e9))
    for table, key, value in zip(TABLES, keys, values, strict=True):
        places = torch.arange(len(key))
        layer.write(torch.tensor(table)[places // 4] * 4 + places % 4, key, value)
