"""Holds attention to chosen tokens by kernels to torch operations over gathered tokens: on a GPU,
or in the process that ``interpreted.start`` starts, where triton's interpreter runs the kernels."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from tests.workers.engine.backends.cuda.without_gpu.interpreted import TOLERANCE
from workers.engine.backends.base.cache_probe import AttentionRule
from workers.engine.backends.compressed import attention as entry_attention
from workers.engine.backends.compressed.attention import attend_entries
from workers.engine.backends.compressed.lines import find_entries
from workers.engine.backends.cuda import chosen_latents, kernel_check, launches
from workers.engine.backends.cuda.backend import CudaBackend
from workers.engine.backends.cuda.kv_cache import TokenMajorCache, TokenMajorLayer, Way
from workers.engine.backends.cuda.metadata import PagedMetadata
from workers.engine.backends.sparse import latents as latents_module
from workers.engine.backends.sparse import span_attention
from workers.engine.backends.sparse.latents import Latents, attend_latents
from workers.engine.backends.sparse.selection import Selection
from workers.engine.backends.sparse.span_attention import attend_spans
from workers.engine.backends.sparse.spans import SpanSelection
from workers.engine.core.attention_backend import Part
from workers.engine.core.layer_shape import EVERYTHING, LayerShape, Visible

PAGE = 4
PARTS = [(40, 1), (8, 1), (61, 1), (50, 5)]
"""Of each sequence, how many tokens are before those of the batch, and how many these are."""
POSITIONS = [40, 8, 61, 50, 51, 52, 53, 54]
CHOSEN = 12


CPU = torch.device("cpu")


def check_latents() -> list[float]:
    """The errors that the check at start finds."""
    return list(kernel_check._latent_errors(CPU))


def compare_mixed(
    sizes: tuple[int, int, int], counts: list[int], dtype: torch.dtype, *, sinks: bool,
    processors: int, seed: int,
) -> None:  # fmt: skip
    """Mix latents for rows that have chosen ``counts`` tokens, of heads, a rank and a rotated part
    of ``sizes``. Rows are padded up to the longest, between their tokens too. What no row may read
    is NaN."""
    torch.manual_seed(seed)
    heads, rank, rotated = sizes
    longest = max(counts) + 3
    tokens = torch.full((4 * longest, rank + rotated), torch.nan, dtype=dtype)
    slots = torch.full((len(counts), longest), -1)
    for row, count in enumerate(counts):
        own = torch.randperm(len(tokens))[:count]
        tokens[own] = torch.randn(count, rank + rotated).to(dtype)
        slots[row, torch.randperm(longest)[:count]] = own
    query = torch.randn(len(counts), heads, rank + rotated).to(dtype)
    sink = 3 * torch.randn(heads) if sinks else None
    rule = AttentionRule((rank + rotated) ** -0.5, EVERYTHING, None, sink)
    actual = chosen_latents.mix(query, tokens, slots, rank, rule, processors)
    assert actual.dtype == dtype
    for row, own in enumerate(slots):
        found = tokens[own[own >= 0]].float()
        scores = query[row].float() @ found.T * rule.scale
        if sink is not None:
            scores = torch.cat([scores, sink[:, None]], dim=1)
        expected = scores.softmax(-1)[:, : len(found)] @ found[:, :rank]
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(actual[row].float(), expected, rtol=tolerance, atol=tolerance)


class _Layer(nn.Module):
    qk_nope_head_dim, v_head_dim = 8, 6

    def __init__(self, heads: int, rank: int) -> None:
        super().__init__()
        self.kv_b_proj = nn.Linear(rank, heads * (8 + 6), bias=False)
        self.expand_kv = None


def compare_latents(
    device: torch.device, dtype: torch.dtype, *, is_chosen: bool, window: int | None
) -> int:
    """Attend to latents of several sequences by the kernel and by torch; return how often the
    kernel ran."""
    torch.manual_seed(0)
    heads, rank, rotated = 3, 16, 4
    layer, metadata = _pages(LayerShape(1, rank + rotated, 0), Way.LATENTS, device, dtype)
    choice = [torch.rand(3, 40), torch.rand(5, 56)]  # some after the row, as with short contexts
    places = [each.topk(CHOSEN).indices for each in choice]
    places[0][:, 0], places[1][:, 0] = 3, 1
    places = [_distinct(each) for each in places]
    rule = AttentionRule(0.3, Visible(window), None)
    if window is not None:
        places[0][:, 0], places[1][:, 0] = torch.tensor(POSITIONS[:3]), torch.tensor(POSITIONS[3:])
    selection = Selection([each.to(device) for each in places]) if is_chosen else None
    query = torch.randn(len(POSITIONS), heads, 8 + rotated).to(device, dtype)
    latents = Latents(_Layer(heads, rank).to(device, dtype))
    with patch.object(latents_module, "_DENSE", 0):
        return _agree(
            layer,
            lambda: attend_latents(query, latents, layer, metadata, selection, rule),
            "mix_latents",
        )


def compare_entries(device: torch.device, dtype: torch.dtype, *, is_chosen: bool) -> int:
    """The same with entries of four tokens beside a window."""
    torch.manual_seed(0)
    rule = AttentionRule(0.3, Visible(7), None, sinks=torch.randn(3).to(device))
    shape = LayerShape(1, 16, 0, rule.visible, has_sinks=True, rate=4)
    layer, metadata = _pages(shape, Way.LATENTS, device, dtype)
    groups = [find_entries(group, shape) for group in metadata.row_groups(PAGE)]
    for group in groups:
        hidden = group.hidden(EVERYTHING)
        ended = group.slots.expand_as(hidden)[~hidden]
        layer.tokens[ended] = torch.randn(len(ended), 16).to(layer.tokens)
    places = [torch.rand(len(each.positions), each.width).topk(5).indices for each in groups]
    selection = Selection([each.to(device) for each in places]) if is_chosen else None
    query = torch.randn(len(POSITIONS), 3, 16).to(device, dtype)
    compressor: Any = SimpleNamespace(
        attention=next(iter(metadata.cache.layers)),
        selection=selection,
        entry_groups=lambda _metadata: groups,
    )
    with patch.object(entry_attention, "_DENSE", 0):
        return _agree(
            layer, lambda: attend_entries(query, compressor, metadata, rule), "mix_latents"
        )


def _distinct(places: Tensor) -> Tensor:
    """Places that are chosen once: the first of equal ones moves beyond the others."""
    for row in places:
        if (row[1:] == row[0]).any():
            row[1:][row[1:] == row[0]] = 0 if row[0] else 1
    return places


def compare_spans(
    device: torch.device, dtype: torch.dtype, *, size: int, choices: int, is_mixed: bool
) -> int:
    """The same with spans, over keys and values of two heads."""
    torch.manual_seed(0)
    layer, metadata = _pages(LayerShape(2, 8, 6), Way.SPLIT, device, dtype)
    numbers = []
    for positions in (POSITIONS[:3], POSITIONS[3:]):
        own = torch.tensor(positions)[:, None, None] // size
        scores = torch.rand(len(positions), choices, -(-56 // size))
        scores = torch.nn.functional.pad(scores, (0, 64 // size)).scatter_(
            2, own.expand(-1, choices, 1), 2.0
        )
        numbers.append(scores.topk(2).indices)
    decoded, chunk = (each.to(device) for each in numbers)
    selection = SpanSelection(size, [None if is_mixed else decoded, chunk])
    query = torch.randn(len(POSITIONS), 4, 8).to(device, dtype)
    rule = AttentionRule(0.3, EVERYTHING, None)
    with patch.object(span_attention, "_DENSE", 0):
        return _agree(
            layer, lambda: attend_spans(query, layer, metadata, selection, rule, 6), "split"
        )


def _pages(
    shape: LayerShape, way: Way, device: torch.device, dtype: torch.dtype
) -> tuple[TokenMajorLayer, PagedMetadata]:
    """Pages in a random order, and a batch over them. What no sequence has is large."""
    module = nn.Module()
    lengths = [before + size for before, size in PARTS]
    count = [-(-length // PAGE) for length in lengths]
    like = torch.empty(0, dtype=dtype, device=device)
    cache = TokenMajorCache({module: shape}, 1 + sum(count), PAGE, like, lambda _: way)
    layer = cache.layers[module]
    order = (1 + torch.randperm(sum(count))).split(count)
    for pages in (layer.key, layer.value):
        pages.fill_(1e4)
        for length, blocks in zip(lengths, order, strict=True):
            places = torch.arange(length)
            slots = (blocks[places // PAGE] * PAGE + places % PAGE).to(device)
            keys = torch.randn(length, *pages.shape[2:])
            pages.flatten(0, 1)[shape.find_lines(slots, PAGE)] = keys.to(like)
    parts = [
        Part(before, size, blocks.tolist())
        for (before, size), blocks in zip(PARTS, order, strict=True)
    ]
    backend = CudaBackend(CPU)
    backend._device = device
    return layer, backend.batch(cache, parts, PAGE)


def _agree(layer: TokenMajorLayer, attend: Any, kernel: str) -> int:
    launch = getattr(launches, kernel)
    is_here = layer.key.device == CPU
    counted = patch.object(launches, "count_processors", lambda _device: 8)
    with (
        patch.object(launches, kernel, wraps=launch) as launched,
        counted if is_here else nullcontext(),
    ):
        actual = attend()
    layer.way = Way.GATHERED
    tolerance = TOLERANCE[layer.key.dtype]
    torch.testing.assert_close(actual, attend(), rtol=tolerance, atol=tolerance)
    return launched.call_count
