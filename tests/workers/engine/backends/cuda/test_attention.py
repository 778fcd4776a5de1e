"""The GPU's attention on the CPU: gathered pages against one token at a time, and the arguments
of the kernel against a plain reading of its documentation."""

import inspect
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.workers.engine.backends.cpu.test_attention import naive
from workers.engine.backends.base.attention import attending
from workers.engine.backends.base.cache_probe import CacheProbe
from workers.engine.backends.cuda import attention, launches
from workers.engine.backends.cuda.attention import (
    attend_gathered,
    attend_pages_on_gpu,
    kernel_takes,
)
from workers.engine.backends.cuda.backend import CudaBackend
from workers.engine.backends.cuda.inputs import mix_metadata
from workers.engine.backends.cuda.kv_cache import TokenMajorCache, TokenMajorLayer, Way
from workers.engine.backends.cuda.metadata import PagedMetadata
from workers.engine.core.attention_backend import Part
from workers.engine.core.layer_shape import LayerShape, Visible
from workers.engine.exceptions import UnsupportedModel

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
    metadata = mix_metadata(cache, sizes, first, [slots, starts, lengths, tables], BLOCK_SIZE)
    query, key, value = (
        torch.cat([getattr(t, name)[p] for (t, _), p in zip(pieces, places, strict=True)])
        .transpose(0, 1)[None]
        for name in ("query", "key", "value")
    )  # fmt: skip
    with attending(metadata):
        output, _ = attend_pages_on_gpu(layer, query, key, value, None, **options)
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


def make_cache(
    layer: nn.Module, value_dim: int, way: Way, window: int | None = None
) -> TokenMajorCache:
    shapes = {layer: LayerShape(KV_HEADS, DIM, value_dim, Visible(window))}
    return TokenMajorCache(shapes, NUM_BLOCKS, BLOCK_SIZE, torch.empty(0), lambda _shape: way)


def test_few_contexts_are_gathered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On GPUs without a kernel, a step of many rows must fit into memory too."""
    layer, sizes = nn.Module(), []
    gather = TokenMajorLayer.gather

    def noted(self: TokenMajorLayer, table: Tensor) -> Any:
        sizes.append(table.numel() * BLOCK_SIZE)
        return gather(self, table)

    monkeypatch.setattr(TokenMajorLayer, "gather", noted)
    said = {}
    for most in (2**15, 2 * 3 * BLOCK_SIZE, 1):
        monkeypatch.setattr(attention, "_GATHERED", most)
        torch.manual_seed(0)
        cache = make_cache(layer, DIM, Way.GATHERED)
        talks = [Talk(11, [3 * i + 1, 3 * i + 2, 3 * i + 3], DIM) for i in range(5)]
        step(layer, cache, [(talk, 10) for talk in talks], {})
        sizes.clear()
        step(layer, cache, [(talk, 1) for talk in talks], {})
        said[most] = torch.cat([talk.output[-1] for talk in talks])
        assert max(sizes) <= max(most, 3 * BLOCK_SIZE)
    for other in said.values():
        torch.testing.assert_close(other, said[2**15])


@pytest.mark.parametrize("window", [None, 1, 5, 100])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_gathered_pieces_equal_the_whole(window: int | None, cap: float | None) -> None:
    torch.manual_seed(0)
    layer = nn.Module()
    for talk in converse(make_cache(layer, 6, Way.GATHERED, window), layer, 6, {"softcap": cap}):
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
    for talk in converse(make_cache(layer, DIM, Way.FLASH, window), layer, DIM, {"scaling": 0.3}):
        query = talk.query * (0.3 * DIM**0.5)
        expected = naive(query, talk.key, talk.value, window, None)
        torch.testing.assert_close(torch.cat(talk.output), expected, rtol=1e-4, atol=1e-4)


def flat_kernel(
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
) -> Tensor:
    """``varlen_attn`` without a block table: keys and values of the sequences follow each other."""
    for tensor in (cu_seq_q, cu_seq_k):
        assert tensor.dtype == torch.int32
        assert tensor.is_contiguous()
    for tensor in (query, key, value):
        assert tensor.stride(-1) == 1
    assert len(cu_seq_k) == len(cu_seq_q)
    assert (cu_seq_q[-1], cu_seq_k[-1]) == (len(query), len(key))
    assert (max_q, max_k) == (cu_seq_q.diff().max(), cu_seq_k.diff().max())
    output = []
    for q, k in zip(pairwise(cu_seq_q.tolist()), pairwise(cu_seq_k.tolist()), strict=True):
        length = k[1] - k[0]
        output.append(
            documented_kernel(
                query[slice(*q)],
                key[None, slice(*k)],
                value[None, slice(*k)],
                torch.tensor([0, q[1] - q[0]], dtype=torch.int32),
                torch.tensor([0, length], dtype=torch.int32),
                q[1] - q[0],
                length,
                scale=scale,
                window_size=window_size,
                enable_gqa=enable_gqa,
                seqused_k=torch.tensor([length], dtype=torch.int32),
                block_table=torch.zeros((1, 1), dtype=torch.int32),
                num_splits=1,
            )
        )
    return torch.cat(output)


@pytest.mark.parametrize("prefill", ["flash", "gathered"])
@pytest.mark.parametrize("window", [None, 1, 5, 100])
def test_single_tokens_are_split_and_prompts_are_not(
    window: int | None, prefill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(2)
    decoded = []

    def split(query: Tensor, *args: Any) -> Tensor:
        layer, table, lengths, max_length, rule = args
        assert table.dtype == lengths.dtype == torch.int32
        assert (len(table), len(lengths)) == (len(query), len(query))
        assert max_length >= lengths.max()
        decoded.append(len(query))
        metadata = PagedMetadata(
            None, lengths, lengths, lengths, lengths, table, 1, 0, len(query), []  # type: ignore[arg-type]
        )  # fmt: skip
        return attend_gathered(query, layer, metadata, rule)

    monkeypatch.setattr(attention, "_kernel", flat_kernel)
    monkeypatch.setattr(launches, "split", split)
    monkeypatch.setattr(attention, "_flash_takes", lambda *_: prefill == "flash")
    layer = nn.Module()
    for talk in converse(make_cache(layer, DIM, Way.SPLIT, window), layer, DIM, {}):
        expected = naive(talk.query, talk.key, talk.value, window, None)
        torch.testing.assert_close(torch.cat(talk.output), expected, rtol=1e-4, atol=1e-4)
    assert decoded == [1, 2, 1, 1, 3]


def test_this_torch_has_the_kernels_with_these_parameters() -> None:
    for documented in (flat_kernel, documented_kernel):
        names = inspect.signature(documented).parameters
        if attention.find_kernel(*names) is None:
            pytest.skip(f"torch {torch.__version__} has no such varlen_attn")


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
        (LayerShape(2, 64, 64, Visible(window=9)), torch.bfloat16, 256, True),
        (LayerShape(2, 64, 64, Visible(chunk=16)), torch.bfloat16, 256, False),
        (LayerShape(2, 64, 64, has_sinks=True), torch.bfloat16, 256, False),
        (LayerShape(2, 64, 64, is_capped=True), torch.bfloat16, 256, False),
    ],
)
def test_what_the_kernel_takes(
    shape: LayerShape, dtype: torch.dtype, block_size: int, taken: bool
) -> None:
    assert kernel_takes(shape, dtype, block_size) is taken


@pytest.mark.parametrize(
    ("ways", "shape", "block_size", "chosen"),
    [
        ([Way.SPLIT, Way.FLASH], LayerShape(2, 64, 64), 16, Way.SPLIT),
        ([Way.SPLIT, Way.FLASH], LayerShape(2, 192, 128, has_sinks=True), 16, Way.SPLIT),
        ([Way.SPLIT, Way.FLASH], LayerShape(2, 512, 512), 16, Way.GATHERED),
        ([Way.FLASH], LayerShape(2, 64, 64), 256, Way.FLASH),
        ([Way.FLASH], LayerShape(2, 64, 64), 16, Way.GATHERED),
        ([Way.FLASH], LayerShape(2, 64, 64, is_capped=True), 256, Way.GATHERED),
        ([], LayerShape(2, 64, 64), 16, Way.GATHERED),
    ],
)
def test_a_layer_attends_in_the_first_way_that_takes_it(
    ways: list[Way], shape: LayerShape, block_size: int, chosen: Way
) -> None:
    backend = CudaBackend(torch.device("cpu"))
    backend.ways[:0] = ways
    layer = nn.Module()
    cache = backend.make_cache({layer: shape}, 2, block_size, torch.bfloat16)
    assert cache.layers[layer].way is chosen
    assert cache.is_bounded is (chosen is not Way.GATHERED)
    for _ in ways:
        assert backend.simplify()
    assert not backend.simplify()
    assert (
        backend.make_cache({layer: shape}, 2, 16, torch.bfloat16).layers[layer].way
        == "gathered pages"
    )


def test_scrubbed_blocks_are_zero() -> None:
    layer = nn.Module()
    cache = make_cache(layer, 6, Way.GATHERED)
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
        metadata = backend.batch(seen, [Part(0, 2, [0])], BLOCK_SIZE)
        with attending(metadata):
            attend_pages_on_gpu(layer, part, part, part, None, **options)
        return seen

    assert probe().shapes == {layer: LayerShape(KV_HEADS, DIM, DIM)}
    assert probe(s_aux=torch.zeros(2)).shapes[layer].has_sinks
    with pytest.raises(UnsupportedModel, match="position_bias"):
        probe(position_bias=torch.zeros(2))
