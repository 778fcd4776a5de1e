"""Whether the kernels in Triton work on a GPU: tried once, before the cache is laid out."""

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import cache

import torch
from torch import Tensor

from workers.engine.backends.base.cache_probe import AttentionRule, CacheProbe
from workers.engine.backends.cuda.attention import attend_gathered
from workers.engine.backends.cuda.fusable import Activation, NormRule, RotationRule, Table
from workers.engine.backends.cuda.kv_cache import TokenMajorLayer, Way
from workers.engine.backends.cuda.metadata import PagedMetadata
from workers.engine.core.layer_shape import LayerShape, Visible

logger = logging.getLogger(__name__)

_TOLERANCE = 2e-2
"""The largest error of bfloat16 results of about 1."""
_LARGE = 8.0
"""Results of the fused kernels stay below about this."""
_PAGE = 16
_LENGTHS = (700, 1, 1030)


@cache
def why_no_split_kernel(device: torch.device) -> str | None:
    """Return why contexts cannot be split among programs on this GPU, or None if they can."""
    return _why_not(device, _decode_errors, "the decode kernel is not used")


@cache
def why_no_latent_kernel(device: torch.device) -> str | None:
    """Return why chosen latents cannot be read by their places on this GPU, or None if they can."""
    return _why_not(device, _latent_errors, "the kernel for chosen latents is not used")


@cache
def why_no_fused_kernels(device: torch.device) -> str | None:
    """Return why the operations between matrix products are not fused on this GPU, or None if they
    are."""
    return _why_not(device, _measure_fused_errors, "operations are not fused")


def _why_not(
    device: torch.device, errors: Callable[[torch.device], Iterable[float]], said: str
) -> str | None:
    """Return why a kernel does not work on a GPU, after a warning that begins with ``said``."""
    reason = _reason(device, errors)
    if reason is not None:
        logger.warning("%s on %s: %s", said, device, reason)
    return reason


def _reason(device: torch.device, errors: Callable[[torch.device], Iterable[float]]) -> str | None:
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        return f"it needs compute capability 8.0, this GPU has {major}.{minor}"
    try:
        error = float(torch.tensor([*errors(device)]).max())  # NaN if one of them is
    except ImportError as missing:
        return f"triton cannot be imported ({missing})"
    except Exception as failure:  # noqa: BLE001 - compilers fail in many ways
        return f"it failed when it was tried: {failure!r}"
    return None if error < _TOLERANCE else f"its results are off by {error:.1%}"


def _decode_errors(device: torch.device) -> Iterator[float]:
    yield _error(device, LayerShape(2, 64, 64), None)
    yield _error(device, LayerShape(1, 192, 128, Visible(window=300), has_sinks=True), 20.0)


@torch.inference_mode()
def _latent_errors(device: torch.device) -> Iterator[float]:
    """Yield the largest differences from gathered latents, of a size that a released model has:
    once for rows whose tokens are split, once for others."""
    from workers.engine.backends.cuda import chosen_latents  # needs triton

    drawn = torch.Generator().manual_seed(0)
    rows, heads, dim, rank, chosen = 3, 20, 576, 512, 700
    tokens = torch.randn(1000, dim, generator=drawn).to(device, torch.bfloat16)
    query = torch.randn(rows, heads, dim, generator=drawn).to(device, torch.bfloat16)
    slots = torch.rand(rows, 1000, generator=drawn).argsort(1)[:, :chosen]
    slots[1, 1:], slots[2, ::3] = -1, -1
    slots = slots.to(device)
    rule = AttentionRule(dim**-0.5, Visible(), None)
    found = tokens[slots.clamp(min=0)].float()
    scores = query.float() @ found.transpose(1, 2) * rule.scale
    weights = scores.masked_fill(slots[:, None] < 0, -torch.inf).softmax(-1)
    expected = weights @ found[..., :rank]
    for processors in (1, 64):
        mixed = chosen_latents.mix(query, tokens, slots, rank, rule, processors)
        yield float((mixed - expected).abs().max())


@torch.inference_mode()
def _measure_fused_errors(device: torch.device) -> Iterator[float]:
    """Yield the largest difference of each fused kernel from the operations that it replaces."""
    drawn = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=drawn).to(device, torch.bfloat16)

    yield from _norm_errors(draw)
    yield from _gate_errors(draw)
    # Every layout of a table, heads that turn in part, and values of another size.
    half = RotationRule(64, interleaved=False, table=Table.HALF, rounds=True)
    yield from _rotation_errors(draw, half, width=32, value_dim=48)
    own = RotationRule(64, interleaved=False, table=Table.OWN, rounds=True)
    yield from _rotation_errors(draw, own, width=64, value_dim=64)
    pairs = RotationRule(32, interleaved=True, table=Table.PAIR, rounds=False)
    yield from _rotation_errors(draw, pairs, width=64, value_dim=64)


def _off(*pairs: tuple[Tensor, Tensor]) -> float:
    errors = [(x.float() - y.float()).abs().max() / _LARGE for x, y in pairs]
    return float(torch.stack(errors).max())


def _norm_errors(draw: Callable[..., Tensor]) -> Iterator[float]:
    from workers.engine.backends.cuda import fused_kernels  # needs triton

    for rule in (NormRule(1e-5, 0, rounds=True), NormRule(1e-6, 1, rounds=False)):
        x, added, weight = draw(1, 3, 576), draw(1, 3, 576), draw(576)
        total = torch.full_like(x, torch.nan)
        normal = fused_kernels.normalize(x, added, weight, rule, total)
        yield _off((total, x + added), (normal, rule.compute(x + added, weight)))
        heads = draw(1, 3, 5, 64)
        for of_heads in (weight[:64], None):
            normal = fused_kernels.normalize(heads, None, of_heads, rule, heads)
            yield _off((normal, rule.compute(heads, of_heads)))


def _gate_errors(draw: Callable[..., Tensor]) -> Iterator[float]:
    from workers.engine.backends.cuda import fused_kernels  # needs triton

    for activation in Activation:
        gate, up = draw(1, 3, 1500), draw(1, 3, 1500)
        yield _off((fused_kernels.gate(gate, up, activation), activation.compute(gate, up)))


def _rotation_errors(
    draw: Callable[..., Tensor], rule: RotationRule, width: int, value_dim: int
) -> Iterator[float]:
    """Errors of rotation and storage together, with keys kept and not, and of each by itself."""
    from workers.engine.backends.cuda import fused_kernels  # needs triton

    heads, value = (draw(3, 6, 64), draw(3, 2, 64)), draw(3, 2, value_dim)
    tables = draw(3, width), draw(3, width)
    query, key = (rule.compute(x.transpose(0, 1), *tables).transpose(0, 1) for x in heads)
    slots = torch.tensor([3, 17, 30]).to(value.device)
    layer = TokenMajorLayer(LayerShape(2, 64, value_dim), 2, _PAGE, draw(0), Way.SPLIT)

    def unwritten() -> tuple[Tensor, Tensor]:
        for pages in (layer.key, layer.value):
            pages.fill_(torch.nan)
        new_query, new_key = (torch.full_like(x, torch.nan) for x in heads)
        return new_query, new_key

    def read_pages() -> tuple[Tensor, Tensor]:
        return layer.key.flatten(0, 1)[slots], layer.value.flatten(0, 1)[slots]

    for keeps in (True, False):
        into = unwritten()
        fused_kernels.rotate_to_pages(heads, tables, rule, into, value, layer, slots, keeps=keeps)
        keys, values = read_pages()
        kept = (into[1], key) if keeps else (keys, key)
        yield _off((into[0], query), kept, (keys, key), (values, value))
    into = unwritten()
    fused_kernels.rotate(heads, tables, rule, into)
    yield _off((into[0], query), (into[1], key))
    fused_kernels.store(heads[1], value, layer, slots)
    keys, values = read_pages()
    yield _off((keys, heads[1]), (values, value))


@torch.inference_mode()
def _error(device: torch.device, shape: LayerShape, softcap: float | None) -> float:
    """Return the largest difference from gathered pages, for rows whose context is split and for
    one row whose context is not."""
    from workers.engine.backends.cuda import split_decode  # needs triton

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
    )
    expected = attend_gathered(query, layer, metadata, rule)
    errors = [
        split_decode.attend(query, layer, table, lengths, max(_LENGTHS), rule, processors)
        .sub(expected)
        .abs()
        .max()
        for processors in (1, 64)
    ]
    return float(torch.stack(errors).max())
