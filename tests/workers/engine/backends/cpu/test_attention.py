from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from workers.engine.backends.base.attention import attending
from workers.engine.backends.base.cache_probe import AttentionRule, CacheProbe
from workers.engine.backends.cpu.attention import (
    AttentionMetadata,
    DecodeGroup,
    PrefillChunk,
    attend_pages,
)
from workers.engine.backends.cpu.kv_cache import KVCache
from workers.engine.core.layer_shape import EVERYTHING, LayerShape, Visible
from workers.engine.exceptions import UnsupportedModel

HEADS, KV_HEADS, KEY_DIM, VALUE_DIM = 4, 2, 8, 6
BLOCK_SIZE, NUM_BLOCKS = 4, 32
SHAPE = LayerShape(KV_HEADS, KEY_DIM, VALUE_DIM)


class Layer(nn.Module):
    is_causal = True


def naive(
    query: Tensor, key: Tensor, value: Tensor, window: int | None, cap: float | None
) -> Tensor:
    """All tokens of one sequence [tokens, heads, dim], one at a time, in float64."""
    query, key, value = query.double(), key.double(), value.double()
    rows = []
    for t in range(len(query)):
        first = 0 if window is None else max(0, t + 1 - window)
        heads = []
        for head in range(HEADS):
            kv_head = head // (HEADS // KV_HEADS)
            scores = key[first : t + 1, kv_head] @ query[t, head] * KEY_DIM**-0.5
            if cap is not None:
                scores = torch.tanh(scores / cap) * cap
            heads.append(scores.softmax(0) @ value[first : t + 1, kv_head])
        rows.append(torch.stack(heads))
    return torch.stack(rows).float()


class Conversation:
    """One sequence whose tokens are computed in pieces over a shared cache."""

    def __init__(self, length: int, blocks: list[int]) -> None:
        self.query = torch.randn(length, HEADS, KEY_DIM)
        self.key = torch.randn(length, KV_HEADS, KEY_DIM)
        self.value = torch.randn(length, KV_HEADS, VALUE_DIM)
        self.blocks = torch.tensor([blocks])
        self.position = 0
        self.output: list[Tensor] = []

    def slots(self, places: Tensor) -> Tensor:
        return self.blocks[0, places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE


def flat_batch(
    cache: KVCache | CacheProbe,
    slots: Tensor,
    groups: list[DecodeGroup],
    chunks: list[PrefillChunk],
) -> AttentionMetadata:
    return AttentionMetadata(cache, slots, groups, chunks, torch.empty(0), torch.empty(0))


def run_step(
    layer: Layer, cache: KVCache, pieces: list[tuple[Conversation, int]], options: dict[str, Any]
) -> None:
    """Compute the next ``size`` tokens of each conversation in one flat batch."""
    metadata = flat_batch(cache, torch.empty(0), [], [])
    parts, slots, start = [], [], 0
    for talk, size in pieces:
        places = torch.arange(talk.position, talk.position + size)
        parts.append((talk.query[places], talk.key[places], talk.value[places]))
        slots.append(talk.slots(places))
        if size == 1:
            metadata.groups.append(DecodeGroup(start, start + 1, talk.blocks, places))
        else:
            metadata.chunks.append(PrefillChunk(start, start + size, talk.position, talk.blocks))
        start += size
    metadata.slots = torch.cat(slots)
    query, key, value = (torch.cat(part).transpose(0, 1)[None] for part in zip(*parts, strict=True))
    with attending(metadata):
        output, _ = attend_pages(layer, query, key, value, None, **options)
    start = 0
    for talk, size in pieces:
        talk.output.append(output[0, start : start + size])
        talk.position += size
        start += size


@pytest.mark.parametrize("window", [None, 1, 5, 100])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_pieces_in_mixed_batches_equal_the_whole(window: int | None, cap: float | None) -> None:
    torch.manual_seed(0)
    layer = Layer()
    shape = replace(SHAPE, visible=Visible(window))
    cache = KVCache({layer: shape}, NUM_BLOCKS, BLOCK_SIZE, torch.float32)
    first = Conversation(14, [9, 3, 20, 1])
    second = Conversation(11, [2, 30, 5])
    options = {"softcap": cap}
    plan = [[(first, 5)], [(first, 6), (second, 4)], [(first, 1), (second, 4)]]
    plan += [[(first, 1), (second, 1)], [(second, 2), (first, 1)]]
    for pieces in plan:
        run_step(layer, cache, pieces, options)
    for talk in (first, second):
        expected = naive(talk.query, talk.key, talk.value, window, cap)
        torch.testing.assert_close(torch.cat(talk.output), expected, rtol=1e-4, atol=1e-4)


def test_a_group_pads_shorter_sequences_with_the_null_block() -> None:
    torch.manual_seed(1)
    layer = Layer()
    cache = KVCache({layer: SHAPE}, NUM_BLOCKS, BLOCK_SIZE, torch.float32)
    talks = [Conversation(10, [4, 5, 6]), Conversation(3, [7, 0, 0])]
    run_step(layer, cache, [(talks[0], 9), (talks[1], 2)], {})
    positions = torch.tensor([9, 2])
    group = DecodeGroup(0, 2, torch.cat([talk.blocks for talk in talks]), positions)
    slots = torch.cat([t.slots(p[None]) for t, p in zip(talks, positions, strict=True)])
    last = [
        torch.stack([getattr(t, name)[-1] for t in talks], dim=1)[None]
        for name in ("query", "key", "value")
    ]
    with attending(flat_batch(cache, slots, [group], [])):
        output, _ = attend_pages(layer, *last, None)
    for row, talk in enumerate(talks):
        expected = naive(talk.query, talk.key, talk.value, None, None)[-1]
        torch.testing.assert_close(output[0, row], expected, rtol=1e-4, atol=1e-4)


def probe(module: nn.Module, mask: Tensor | None = None, **options: Any) -> None:
    tokens = torch.arange(2)
    metadata = flat_batch(CacheProbe(), tokens, [], [PrefillChunk(0, 2, 0, tokens[None])])
    part = torch.zeros(1, 1, 2, 4)
    with attending(metadata):
        attend_pages(module, part, part, part, mask, **options)


def test_a_probe_learns_the_shapes() -> None:
    layer = Layer()
    tokens = torch.arange(2)
    seen = CacheProbe()
    metadata = flat_batch(seen, tokens, [], [PrefillChunk(0, 2, 0, tokens[None])])
    query = torch.zeros(1, HEADS, 2, KEY_DIM)
    key, value = torch.zeros(1, KV_HEADS, 2, KEY_DIM), torch.zeros(1, KV_HEADS, 2, VALUE_DIM)
    with attending(metadata):
        attend_pages(layer, query, key, value, None)
    assert seen.shapes == {layer: SHAPE}
    assert seen.rules == {layer: AttentionRule(KEY_DIM**-0.5, EVERYTHING, None)}
    with pytest.raises(UnsupportedModel, match="more than once"):
        seen.note(layer, torch.zeros(2, 1, 4), torch.zeros(2, 1, 4), seen.rules[layer])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"position_bias": torch.zeros(2)}, "position_bias"),
        ({"is_causal": False}, "causally"),
        ({"dropout": 0.1}, "applies dropout"),
        ({"mask": torch.zeros(2, 2)}, "mask"),
    ],
)
def test_what_attention_does_not_do_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        probe(Layer(), **options)


class Encoder(Layer):
    is_causal = False


def test_an_encoder_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="causally"):
        probe(Encoder())


def test_arguments_that_change_nothing_are_let_through() -> None:
    probe(Layer(), dropout=0.0, is_causal=True, position_ids=torch.zeros(2), output_router=False)
