"""The GPU's attention on the CPU: gathered pages against one token at a time, and the arguments
of the kernel against a plain reading of its documentation."""

import inspect
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.workers.engine.model.test_attention import naive
from workers.engine.cuda import attention
from workers.engine.cuda.attention import kernel_takes, paged_attention_cuda
from workers.engine.cuda.inputs import mixed_metadata
from workers.engine.cuda.kv_cache import TokenMajorCache
from workers.engine.exceptions import UnsupportedModel
from workers.engine.model.attention_backend import CudaBackend
from workers.engine.model.kv_cache import CacheProbe, LayerShape

HEADS, KV_HEADS, DIM = 4, 2, 8
BLOCK_SIZE, NUM_BLOCKS = 4, 32
PLAN = [
    [("a", 5)],
    [("b", 1), ("a", 6)],
    [("a", 1), ("b", 1)],
    [("b", 3), ("a", 1)],
    [("b", 2), ("a", 1), ("c", 3)],
    [("c", 1), ("a", 1), ("b", 1)],
]


class Talk:
    def __init__(self, length: int, blocks: list[int], value_dim: int) -> None:
        self.query = torch.randn(length, HEADS, DIM)
        self.key = torch.randn(length, KV_HEADS, DIM)
        self.value = torch.randn(length, KV_HEADS, value_dim)
        self.blocks = blocks
        self.output: list[Tensor] = []

    @property
    def position(self) -> int:
        return sum(map(len, self.output))


def step(
    layer: nn.Module,
    cache: TokenMajorCache,
    pieces: list[tuple[Talk, int]],
    options: dict[str, Any],
) -> None:
    """The next ``size`` tokens of each talk, in one flat batch with single tokens first."""
    pieces = sorted(pieces, key=lambda piece: piece[1] > 1)
    sizes = [size for _, size in pieces]
    first = [talk.position for talk, _ in pieces]
    width = max(len(talk.blocks) for talk, _ in pieces)
    tables = torch.tensor([t.blocks + [0] * (width - len(t.blocks)) for t, _ in pieces])
    places = [torch.arange(f, f + size) for f, size in zip(first, sizes, strict=True)]
    slots = torch.cat(
        [
            t[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE
            for t, p in zip(tables, places, strict=True)
        ]
    )
    starts = torch.tensor([0, *sizes]).cumsum(0)
    lengths = torch.tensor(first) + torch.tensor(sizes)
    metadata = mixed_metadata(cache, sizes, first, [slots, starts, lengths, tables], BLOCK_SIZE)
    query, key, value = (
        torch.cat([getattr(t, name)[p] for (t, _), p in zip(pieces, places, strict=True)])
        .transpose(0, 1)[None]
        for name in ("query", "key", "value")
    )  # fmt: skip
    output, _ = paged_attention_cuda(
        layer, query, key, value, None, attention_metadata=metadata, **options
    )
    for (talk, _), part in zip(pieces, output[0].split(sizes), strict=True):
        talk.output.append(part)


def converse(cache: TokenMajorCache, layer: nn.Module, value_dim: int, options: Any) -> list[Talk]:
    talks = {
        "a": Talk(15, [9, 3, 20, 1], value_dim),
        "b": Talk(8, [2, 30], value_dim),
        "c": Talk(4, [31], value_dim),
    }
    for pieces in PLAN:
        step(layer, cache, [(talks[name], size) for name, size in pieces], options)
    assert all(talk.position == len(talk.query) for talk in talks.values())
    return list(talks.values())


def make_cache(layer: nn.Module, value_dim: int, paged_kernel: bool) -> TokenMajorCache:
    shapes = {layer: LayerShape(KV_HEADS, DIM, value_dim)}
    return TokenMajorCache(
        shapes, NUM_BLOCKS, BLOCK_SIZE, torch.empty(0), lambda _shape: paged_kernel
    )


@pytest.mark.parametrize("window", [None, 1, 5, 100])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_gathered_pieces_equal_the_whole(window: int | None, cap: float | None) -> None:
    torch.manual_seed(0)
    layer = nn.Module()
    options = {"sliding_window": window, "softcap": cap}
    for talk in converse(make_cache(layer, 6, False), layer, 6, options):
        expected = naive(talk.query, talk.key, talk.value, window, cap)
        torch.testing.assert_close(torch.cat(talk.output), expected, rtol=1e-4, atol=1e-4)


def documented_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: Tensor,
    block_table: Tensor,
    num_splits: int,
) -> Tensor:
    """``varlen_attn`` as its documentation has it, with the checks that its kernel makes."""
    for tensor in (cu_seq_q, cu_seq_k, seqused_k, block_table):
        assert tensor.dtype == torch.int32
        assert tensor.stride(-1) == 1
    sizes = cu_seq_q.diff()
    assert len(cu_seq_k) == len(cu_seq_q) == len(seqused_k) + 1 == len(block_table) + 1
    assert (max_q, num_splits, enable_gqa) == (sizes.max(), 1, True)
    assert max_k >= seqused_k.max()
    left, right = window_size
    output = []
    for row, (start, end) in enumerate(pairwise(cu_seq_q.tolist())):
        used = int(seqused_k[row])
        keys, values = (p[block_table[row]].flatten(0, 1)[:used] for p in (key, value))
        keys, values = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", query[start:end], keys) * scale
        places = torch.arange(used)
        own = torch.arange(used - (end - start), used)[:, None]
        hidden = torch.zeros(len(own), used, dtype=torch.bool)
        if right >= 0:
            hidden |= places > own + right
        if left >= 0:
            hidden |= places < own - left
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        output.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(output)


@pytest.mark.parametrize("window", [None, 1, 5, 100])
def test_the_kernel_is_called_as_it_is_documented(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    monkeypatch.setattr(attention, "_kernel", documented_kernel)
    layer = nn.Module()
    options = {"sliding_window": window, "scaling": 0.3}
    for talk in converse(make_cache(layer, DIM, True), layer, DIM, options):
        query = talk.query * (0.3 * DIM**0.5)
        expected = naive(query, talk.key, talk.value, window, None)
        torch.testing.assert_close(torch.cat(talk.output), expected, rtol=1e-4, atol=1e-4)


def test_this_torch_has_the_kernel_with_these_parameters() -> None:
    if attention._kernel is None:
        pytest.skip(f"torch {torch.__version__} has no varlen_attn with a block table")
    theirs = inspect.signature(attention._kernel).parameters
    assert set(inspect.signature(documented_kernel).parameters) <= set(theirs)


@pytest.mark.parametrize(
    ("shape", "dtype", "block_size", "taken"),
    [
        (LayerShape(2, 64, 64), torch.bfloat16, 256, True),
        (LayerShape(2, 256, 256), torch.float16, 512, True),
        (LayerShape(2, 64, 64), torch.float32, 256, False),
        (LayerShape(2, 64, 64), torch.bfloat16, 16, False),
        (LayerShape(2, 64, 32), torch.bfloat16, 256, False),
        (LayerShape(2, 60, 60), torch.bfloat16, 256, False),
        (LayerShape(2, 288, 288), torch.bfloat16, 256, False),
    ],
)
def test_what_the_kernel_takes(
    shape: LayerShape, dtype: torch.dtype, block_size: int, taken: bool
) -> None:
    assert kernel_takes(shape, dtype, block_size) is taken


def test_scrubbed_blocks_are_zero() -> None:
    layer = nn.Module()
    cache = make_cache(layer, 6, False)
    pages = cache.layers[layer]
    pages.write(torch.tensor([4, 5, 9]), torch.ones(3, KV_HEADS, DIM), torch.ones(3, KV_HEADS, 6))
    cache.scrub([1])
    assert not pages.key[1].any()
    assert pages.key[2].any()


def test_a_probe_learns_the_shapes_and_refuses_what_is_left_out() -> None:
    layer = nn.Module()
    backend = CudaBackend(torch.device("cpu"))
    part = torch.zeros(1, KV_HEADS, 2, DIM)

    def probe(**options: Any) -> CacheProbe:
        seen = CacheProbe()
        metadata = backend.piece(seen, 0, 2, torch.tensor([[0]]), BLOCK_SIZE)
        paged_attention_cuda(layer, part, part, part, None, attention_metadata=metadata, **options)
        return seen

    assert probe().shapes == {layer: LayerShape(KV_HEADS, DIM, DIM)}
    with pytest.raises(UnsupportedModel, match="s_aux"):
        probe(s_aux=torch.zeros(2))
