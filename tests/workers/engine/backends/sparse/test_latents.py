"""Attention over latents against attention over the keys and values that they expand to."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from workers.engine.backends.base.cache_probe import AttentionRule
from workers.engine.backends.cpu.kv_cache import LayerCache
from workers.engine.backends.sparse import latents as latents_module
from workers.engine.backends.sparse.latents import Latents, attend_latents
from workers.engine.backends.sparse.rows import RowGroup
from workers.engine.backends.sparse.selection import Selection
from workers.engine.core.layer_shape import EVERYTHING, LayerShape, Visible
from workers.engine.exceptions import UnsupportedModel

HEADS, RANK, PLAIN, ROTATED, VALUE = 3, 16, 8, 4, 6


class Layer(nn.Module):
    """An attention layer's part that expands latents."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.qk_nope_head_dim, self.v_head_dim = PLAIN, VALUE
        self.kv_b_proj = nn.Linear(RANK, HEADS * (PLAIN + VALUE), bias=False, dtype=dtype)

    def expand_kv(self, latent: Tensor, rotated: Tensor) -> tuple[Tensor, Tensor]:
        heads = self.kv_b_proj(latent).view(*latent.shape[:-1], HEADS, -1)
        keys, values = heads.split([PLAIN, VALUE], dim=-1)
        shared = rotated[..., None, :].expand(*keys.shape[:-1], -1)
        return torch.cat([keys, shared], dim=-1), values


class Metadata:
    def __init__(self, groups: list[RowGroup]) -> None:
        self.cache: Any = None
        self.slots = torch.zeros(0)
        self._groups = groups

    def row_groups(self, block_size: int) -> list[RowGroup]:
        assert block_size == 4
        return self._groups

    def slot_kernel(self, _layer: Any, _rank: int) -> None:
        """As on a CPU."""

    def line_kernel(self, _layer: Any) -> None:
        """As on a CPU."""


def _expected(
    layer: Layer, query: Tensor, tokens: Tensor, hidden: Tensor, rule: AttentionRule
) -> Tensor:
    """One row [heads, dim] over the latents and rotated parts ``tokens`` [tokens, dim]."""
    keys, values = layer.expand_kv(*tokens.split([RANK, ROTATED], dim=-1))
    scores = torch.einsum("hd,thd->ht", query, keys) * rule.scale
    scores = scores.masked_fill(hidden, -torch.inf)
    if rule.sinks is not None:
        scores = torch.cat([scores, rule.sinks[:, None]], dim=1)
    weights = scores.softmax(-1)[:, : len(tokens)]
    return torch.einsum("ht,thd->hd", weights, values)


@pytest.mark.parametrize("dense", [0, 100], ids=["gathered", "dense"])
@pytest.mark.parametrize("together", [1, 2**24])
@pytest.mark.parametrize(
    ("visible", "sinks"), [(EVERYTHING, False), (Visible(window=7), True)], ids=["all", "window"]
)
@pytest.mark.parametrize("is_chosen", [True, False], ids=["chosen", "whole"])
@torch.inference_mode()
def test_rows_attend_as_over_expanded_keys(
    dense: int,
    together: int,
    visible: Visible,
    sinks: bool,
    is_chosen: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two decoding rows of unequal length, and a chunk of four tokens after eleven others."""
    monkeypatch.setattr(latents_module, "_DENSE", dense)
    monkeypatch.setattr(latents_module, "_TOGETHER", together)
    torch.manual_seed(0)
    layer = Layer()
    tables = [[3, 9, 1, 14], [2, 11, 0, 0], [4, 6, 8, 10]]
    sequences = [torch.randn(length, RANK + ROTATED) for length in (14, 6, 15)]
    cache = LayerCache(LayerShape(1, RANK + ROTATED, 0), 16, 4, torch.float32)
    for tokens, table in zip(sequences, tables, strict=True):
        places = torch.arange(len(tokens))
        slots = torch.tensor(table)[places // 4] * 4 + places % 4
        cache.write(slots, tokens[:, None], tokens[:, None, :0])
    groups = [
        RowGroup(0, 2, torch.tensor(tables[:2]), torch.tensor([13, 5]), 4),
        RowGroup(2, 6, torch.tensor(tables[2:]), torch.arange(11, 15), 4),
    ]
    owners, positions = [0, 1, 2, 2, 2, 2], [13, 5, 11, 12, 13, 14]
    scale, sink = 0.3, torch.randn(HEADS) if sinks else None
    rule = AttentionRule(scale, visible, None, sink)
    chosen = [torch.randperm(position + 1)[:5] for position in positions]
    selection = Selection([torch.stack(chosen[:2]), torch.stack(chosen[2:])])
    query = torch.randn(6, HEADS, PLAIN + ROTATED)
    actual = attend_latents(
        query, Latents(layer), cache, Metadata(groups), selection if is_chosen else None, rule
    )
    for row, (owner, position) in enumerate(zip(owners, positions, strict=True)):
        tokens = sequences[owner]
        hidden = visible.hides(torch.tensor(position), torch.arange(len(tokens)))
        if is_chosen:
            hidden |= ~torch.isin(torch.arange(len(tokens)), chosen[row])
        expected = _expected(layer, query[row], tokens, hidden, rule)
        torch.testing.assert_close(actual[row], expected)


@torch.inference_mode()
def test_sixteen_bits_round_only_what_is_stored_on_a_cpu() -> None:
    torch.manual_seed(0)
    layer = Layer(torch.bfloat16)
    cache = LayerCache(LayerShape(1, RANK + ROTATED, 0), 4, 4, torch.bfloat16)
    tokens = torch.randn(8, RANK + ROTATED, dtype=torch.bfloat16)
    cache.write(torch.arange(4, 12), tokens[:, None], tokens[:, None, :0])
    group = RowGroup(0, 1, torch.tensor([[1, 2]]), torch.tensor([7]), 4)
    query = torch.randn(1, HEADS, PLAIN + ROTATED, dtype=torch.bfloat16)
    rule = AttentionRule(0.3, EVERYTHING, None)
    latents, metadata = Latents(layer), Metadata([group])
    actual = attend_latents(query, latents, cache, metadata, None, rule)
    exact = Layer()
    exact.kv_b_proj.weight.copy_(layer.kv_b_proj.weight)
    no_token = torch.zeros(8, dtype=torch.bool)
    expected = _expected(exact, query[0].float(), tokens.float(), no_token, rule)
    assert actual.dtype == torch.bfloat16
    assert torch.equal(actual[0], expected.bfloat16())


def test_capped_scores_are_refused() -> None:
    rule = AttentionRule(0.3, EVERYTHING, softcap=5.0)
    query = torch.randn(1, HEADS, PLAIN + ROTATED)
    with pytest.raises(UnsupportedModel, match="does not cap scores"):
        attend_latents(query, Latents(Layer()), None, Metadata([]), None, rule)


def test_outside_of_pages_latents_are_expanded_as_the_layer_does_it() -> None:
    layer = Layer()
    latent, rotated = torch.randn(1, 5, RANK), torch.randn(1, 5, ROTATED)
    expected = layer.expand_kv(latent, rotated)
    for own, theirs in zip(Latents(layer)(latent, rotated), expected, strict=True):
        assert torch.equal(own, theirs)
