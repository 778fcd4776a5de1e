"""Launches the kernels in Triton that attend, which are imported with the first launch."""

from functools import cache

import torch
from torch import Tensor

from workers.engine.backends.base.cache_probe import AttentionRule
from workers.engine.backends.cuda.kv_cache import TokenMajorLayer

MAX_RANK = 512
"""The most numbers of a latent that :func:`mix_latents` takes: with more, a program's tiles would
not fit every GPU's shared memory."""


def split(
    query: Tensor,
    layer: TokenMajorLayer,
    block_table: Tensor,
    lengths: Tensor,
    max_length: int,
    rule: AttentionRule,
) -> Tensor:
    """See :func:`split_decode.attend`."""
    from workers.engine.backends.cuda import split_decode  # needs triton

    processors = count_processors(query.device)
    return split_decode.attend(query, layer, block_table, lengths, max_length, rule, processors)


def mix_latents(
    query: Tensor, tokens: Tensor, slots: Tensor, rank: int, rule: AttentionRule
) -> Tensor:
    """See :func:`chosen_latents.mix`."""
    from workers.engine.backends.cuda import chosen_latents  # needs triton

    return chosen_latents.mix(query, tokens, slots, rank, rule, count_processors(query.device))


@cache
def count_processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count
