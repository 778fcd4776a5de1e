from dataclasses import replace

import torch
from torch import nn

from workers.engine.backends.cpu.kv_cache import KVCache, pack_keys
from workers.engine.core.layer_shape import LayerShape

SHAPE = LayerShape(num_kv_heads=2, key_dim=3, value_dim=2)


def test_gathered_blocks_are_each_heads_tokens_in_order() -> None:
    layer = nn.Identity()
    cache = KVCache({layer: SHAPE}, num_blocks=5, block_size=2, dtype=torch.float32)
    tokens = torch.arange(4).float()
    key = tokens[:, None, None].expand(4, 2, 3) + torch.tensor([0.0, 100.0])[:, None]
    cache.layers[layer].write(torch.tensor([6, 7, 2, 3]), key, key[:, :, :2] + 0.5)
    pages = cache.layers[layer]
    keys, values = pages.gather(torch.tensor([3, 1, 5 + 3, 5 + 1]), 1)
    assert keys[:, :, 0].tolist() == [[0, 1, 2, 3], [100, 101, 102, 103]]
    assert values[:, :, 1].tolist() == [[0.5, 1.5, 2.5, 3.5], [100.5, 101.5, 102.5, 103.5]]


def test_packed_keys_are_gathered_as_they_were_written() -> None:
    layer, shape = nn.Identity(), LayerShape(num_kv_heads=2, key_dim=6, value_dim=2)
    plain, packed = (
        KVCache(shapes, num_blocks=4, block_size=32, dtype=torch.bfloat16).layers[layer]
        for shapes in ({layer: shape}, pack_keys({layer: shape}))
    )
    slots = torch.randperm(128, generator=torch.Generator().manual_seed(1))[:90]
    key = torch.randn(90, 2, 6, generator=torch.Generator().manual_seed(2)).bfloat16()
    for pages in (plain, packed):
        pages.write(slots, key, key[:, :, :2])
    tables = torch.tensor([[3, 1], [2, 0]])
    expected, found = (x.gather(x.head_major(tables), 2) for x in (plain, packed))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert torch.equal(packed.value, plain.value)


def test_packed_keys_lie_as_pairs_of_sixteen_tokens_side_by_side() -> None:
    layer, shape = nn.Identity(), LayerShape(num_kv_heads=1, key_dim=4, value_dim=2)
    cache = KVCache(pack_keys({layer: shape}), num_blocks=2, block_size=32, dtype=torch.bfloat16)
    key = torch.arange(128).view(32, 1, 4).bfloat16()
    cache.layers[layer].write(torch.arange(32, 64), key, key[:, :, :2])
    tokens = key.view(2, 16, 2, 2)
    assert torch.equal(cache.layers[layer].key[1].view(2, 2, 16, 2), tokens.transpose(1, 2))


def test_scrubbing_clears_blocks_and_no_others() -> None:
    layer = nn.Identity()
    cache = KVCache({layer: SHAPE}, num_blocks=3, block_size=2, dtype=torch.bfloat16)
    ones = torch.ones(4, 2, 3, dtype=torch.bfloat16)
    cache.layers[layer].write(torch.tensor([2, 3, 4, 5]), ones, ones[:, :, :2])
    cache.scrub([2])
    keys, _ = cache.layers[layer].gather(torch.tensor([1, 2, 4, 5]), 2)
    assert keys.flatten(1).amax(1).tolist() == [1, 0, 1, 0]


def test_bytes_of_a_token() -> None:
    assert SHAPE.block_bytes(4, torch.bfloat16) == 4 * 2 * (3 + 2) * 2


def test_layers_with_the_same_keys_and_values_have_the_same_pages() -> None:
    first, second = nn.Identity(), nn.Identity()
    kept = replace(SHAPE, kept_by=first)
    layers = KVCache({first: SHAPE, second: kept}, 3, 2, torch.float32).layers
    key = torch.randn(2, 2, 3)
    layers[first].write(torch.tensor([2, 3]), key, key[:, :, :2])
    keys, _ = layers[second].gather(torch.tensor([1, 4]), 1)
    assert torch.equal(keys, key.transpose(0, 1))
    assert kept.block_bytes(4, torch.float32) == 0
