"""Whether the decode kernel in Triton works on a GPU: tried once, before the cache is laid out."""

import logging
from functools import cache

import torch

from workers.engine.cuda.attention import PagedMetadata, attend_gathered
from workers.engine.cuda.kv_cache import TokenMajorLayer, Way
from workers.engine.model.kv_cache import AttentionRule, CacheProbe, LayerShape
from workers.engine.model.visibility import Visible

logger = logging.getLogger(__name__)

_TOLERANCE = 2e-2
"""The largest error of bfloat16 results of about 1."""
_PAGE = 16
_LENGTHS = (700, 1, 1030)


@cache
def why_no_split_kernel(device: torch.device) -> str | None:
    """Why contexts cannot be split among programs on this GPU, or None if they can."""
    reason = _reason(device)
    if reason is not None:
        logger.warning("the decode kernel is not used on %s: %s", device, reason)
    return reason


def _reason(device: torch.device) -> str | None:
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        return f"it needs compute capability 8.0, this GPU has {major}.{minor}"
    try:
        error = max(
            _error(device, LayerShape(2, 64, 64), None),
            _error(device, LayerShape(1, 192, 128, Visible(window=300), has_sinks=True), 20.0),
        )
    except ImportError as missing:
        return f"triton cannot be imported ({missing})"
    except Exception as failure:  # noqa: BLE001 - compilers fail in many ways
        return f"it failed when it was tried: {failure!r}"
    return None if error < _TOLERANCE else f"its results are off by {error:.1%}"


@torch.inference_mode()
def _error(device: torch.device, shape: LayerShape, softcap: float | None) -> float:
    """The largest difference from gathered pages, for rows whose context is split and for one row
    whose context is not."""
    from workers.engine.cuda import split_decode  # needs triton

    count = [-(-length // _PAGE) for length in _LENGTHS]
    like = torch.empty(0, dtype=torch.bfloat16, device=device)
    layer = TokenMajorLayer(shape, 1 + sum(count), _PAGE, like, Way.SPLIT)
    drawn = torch.Generator().manual_seed(0)
    layer.key.copy_(torch.randn(layer.key.shape, generator=drawn))
    layer.value.copy_(torch.randn(layer.value.shape, generator=drawn))
    table = torch.zeros((len(_LENGTHS), max(count)), dtype=torch.int32)
    blocks = 1 + torch.randperm(sum(count), generator=drawn)
    for row, part in enumerate(torch.split(blocks, count)):
        table[row, : len(part)] = part
    heads = 3 * shape.num_kv_heads
    query = torch.randn(len(_LENGTHS), heads, shape.key_dim, generator=drawn).to(like)
    sinks = torch.randn(heads, generator=drawn).to(like) if shape.has_sinks else None
    rule = AttentionRule(shape.key_dim**-0.5, shape.visible, softcap, sinks)
    table, lengths = table.to(device), torch.tensor(_LENGTHS, dtype=torch.int32).to(device)
    metadata = PagedMetadata(
        CacheProbe(), lengths, lengths, lengths, lengths, table, 1, max(_LENGTHS), len(_LENGTHS), []
    )  # fmt: skip
    expected = attend_gathered(query, layer, metadata, rule)
    errors = [
        split_decode.attend(query, layer, table, lengths, max(_LENGTHS), rule, processors)
        .sub(expected)
        .abs()
        .max()
        for processors in (1, 64)
    ]
    return float(torch.stack(errors).max())
