"""Lays out parts of sequences as one flat batch."""

from itertools import accumulate

import torch
from torch import Tensor

from workers.engine.core.attention_backend import Part
from workers.engine.core.plan import NULL_BLOCK


def lay_out_parts(parts: list[Part], block_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the slots [tokens] of a flat batch, where its parts begin and end [parts + 1], and
    their block tables [parts, blocks], padded with the null block."""
    slots = []
    for part in parts:
        places = torch.arange(part.position, part.position + part.size)
        blocks = torch.tensor(part.blocks)
        slots.append(blocks[places // block_size] * block_size + places % block_size)
    starts = torch.tensor([0, *accumulate(part.size for part in parts)])
    width = max(len(part.blocks) for part in parts)
    padded = [[*part.blocks, *[NULL_BLOCK] * (width - len(part.blocks))] for part in parts]
    return torch.cat(slots), starts, torch.tensor(padded)
