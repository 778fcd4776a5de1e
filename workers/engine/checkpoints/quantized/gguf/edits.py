"""How weights of transformers are made of what llama.cpp stores, where it is not the same.

The ways in which stored values differ follow llama.cpp,
https://github.com/ggml-org/llama.cpp/tree/master/conversion.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from workers.engine.checkpoints.quantized.gguf.architecture import HEADS, KEY_HEADS, Edit, Source

Parts = Sequence[Tensor]


def join(parts: Parts, source: Source) -> Tensor:
    """Return the rows of all parts, one after another."""
    return torch.cat(list(parts), -2) if len(parts) > 1 else parts[0]


def join_shared(parts: Parts, source: Source) -> Tensor:
    """Return one row, also where the file has a vector."""
    return parts[0].view(1, -1)


def subtract_one(parts: Parts, source: Source) -> Tensor:
    return parts[0] - 1


def flatten(parts: Parts, source: Source) -> Tensor:
    return parts[0].flatten()


def widen_convolution(parts: Parts, source: Source) -> Tensor:
    return parts[0].unsqueeze(1)


def take_log(parts: Parts, source: Source) -> Tensor:
    """Return the logarithm of how fast states decay, of which files store the negative."""
    return torch.log(-parts[0]).flatten()


def transpose(parts: Parts, source: Source) -> Tensor:
    """Return experts [experts, inputs, outputs]."""
    return join(parts, source).transpose(-1, -2).contiguous()


def alternate(parts: Parts, source: Source) -> Tensor:
    """Return biases of gates and ups [experts, 2 * outputs] that alternate."""
    return torch.stack(list(parts), -1).flatten(-2)


def alternate_and_transpose(parts: Parts, source: Source) -> Tensor:
    """Return gates and ups [experts, inputs, 2 * outputs] that alternate."""
    return torch.stack(list(parts), 2).flatten(1, 2).transpose(1, 2).contiguous()


def compose_latent(parts: Parts, source: Source) -> Tensor:
    """Return what turns latents into keys and values [heads * (keys + values), rank]. Newer files
    hold the keys' part transposed, for each head, and the values' part."""
    if len(parts) == 1:
        return parts[0]
    keys, values = parts
    return torch.cat([keys.transpose(1, 2), values], 1).flatten(0, 1)


def group_falcon(parts: Parts, source: Source) -> Tensor:
    """Return the queries of each group before its key and its value. Files hold all queries, then
    all keys, then all values."""
    heads, key_heads = _heads(source, HEADS), _heads(source, KEY_HEADS)
    size = parts[0].shape[0] // (heads + 2 * key_heads)
    sizes = [heads * size, key_heads * size, key_heads * size]
    each = [part.view(key_heads, -1, *part.shape[1:]) for part in torch.split(parts[0], sizes)]
    return torch.cat(each, 1).reshape(parts[0].shape)


# Rotary positions --------------------------------------------------------------------------------


def halve(values: Tensor, heads: int) -> Tensor:
    """Return rows (pair, half) of each head as rows (half, pair), as transformers rotates them."""
    by_pair = values.view(heads, -1, 2, *values.shape[1:])
    return by_pair.swapaxes(1, 2).reshape(values.shape)


def _halve_queries(parts: Parts, source: Source) -> Tensor:
    return halve(parts[0], _heads(source, HEADS))


def _halve_keys(parts: Parts, source: Source) -> Tensor:
    return halve(parts[0], _heads(source, KEY_HEADS))


def _heads(source: Source, key: str) -> int:
    """Return the largest number of any layer: others have no attention."""
    metadata = source.metadata
    key = key if key in metadata else HEADS
    return int(max(metadata.get_list(key, source.num_layers)))


INTERLEAVED: Mapping[str, Edit] = {
    f".{part}_proj.{kind}": edit
    for part, edit in (("q", _halve_queries), ("k", _halve_keys))
    for kind in ("weight", "bias")
}
"""The rows of queries and keys are stored as pairs of rotary positions."""
NORMS_PLUS_ONE: Mapping[str, Edit] = {"norm.weight": subtract_one}
"""Norms are stored as their full factors, where transformers stores factors minus 1."""


# Gated delta networks ----------------------------------------------------------------------------


def _group_heads(values: Tensor, source: Source, dim: int = 0) -> Tensor:
    """Return the heads of values in the order of the heads of keys that they belong to. Files have
    the first of each, then the second, and so on."""
    key_heads = int(source.metadata["ssm.group_count"])
    each = int(source.metadata["ssm.time_step_rank"]) // key_heads
    before, after = values.shape[:dim], values.shape[dim + 1 :]
    tiled = values.reshape(*before, each, key_heads, -1, *after)
    return tiled.swapaxes(dim, dim + 1).reshape(values.shape)


def _grouped(dim: int = 0, before: Edit = join) -> Edit:
    return lambda parts, source: _group_heads(before(parts, source), source, dim)


def _group_after_keys(parts: Parts, source: Source) -> Tensor:
    """Return queries and keys, and grouped values."""
    metadata = source.metadata
    num_keys = 2 * int(metadata["ssm.state_size"]) * int(metadata["ssm.group_count"])
    values = _group_heads(parts[0][num_keys:], source)
    return torch.cat([parts[0][:num_keys], values])


def _interleave_by_key_head(parts: Parts, source: Source) -> Tensor:
    """Return queries, keys, values and gates of each head of keys together. Files hold all queries,
    then all keys, then all values; and all gates."""
    if len(parts) == 1:
        return parts[0]
    heads = int(source.metadata["ssm.group_count"])
    keys = int(source.metadata["ssm.state_size"]) * heads
    first, gates = parts
    q, k, v = torch.split(first, [keys, keys, len(first) - 2 * keys])
    each = [part.view(heads, -1, part.shape[-1]) for part in (q, k, v, gates)]
    return torch.cat(each, 1).flatten(0, 1)


def _widen_after_keys(parts: Parts, source: Source) -> Tensor:
    return widen_convolution([_group_after_keys(parts, source)], source)


DELTA_NET: Mapping[str, Edit] = {
    "linear_attn.norm.weight": join,
    **NORMS_PLUS_ONE,
    "linear_attn.A_log": take_log,
    "linear_attn.conv1d.weight": widen_convolution,
    "shared_expert_gate.weight": join_shared,
    "linear_attn.in_proj_qkvz.weight": _interleave_by_key_head,
}
GROUPED_DELTA_NET: Mapping[str, Edit] = {
    **DELTA_NET,
    "linear_attn.A_log": _grouped(before=take_log),
    "linear_attn.dt_bias": _grouped(),
    "linear_attn.in_proj_a.weight": _grouped(),
    "linear_attn.in_proj_b.weight": _grouped(),
    "linear_attn.in_proj_z.weight": _grouped(),
    "linear_attn.in_proj_qkv.weight": _group_after_keys,
    "linear_attn.conv1d.weight": _widen_after_keys,
    "linear_attn.out_proj.weight": _grouped(dim=1),
}
MAMBA2: Mapping[str, Edit] = {
    "mamba.A_log": take_log,
    "mamba.D": flatten,
    "mamba.norm.weight": flatten,
    "mamba.conv1d.weight": widen_convolution,
}
