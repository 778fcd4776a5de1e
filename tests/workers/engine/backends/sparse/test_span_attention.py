"""Attention to spans against plain attention to the tokens in them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.workers.engine.backends.sparse.scattered import (
    LENGTHS,
    OWNERS,
    POSITIONS,
    Metadata,
    store,
)
from workers.engine.backends.base.cache_probe import AttentionRule
from workers.engine.backends.cpu.kv_cache import LayerCache
from workers.engine.backends.cuda.kv_cache import TokenMajorLayer, Way
from workers.engine.backends.sparse import span_attention
from workers.engine.backends.sparse.span_attention import attend_spans
from workers.engine.backends.sparse.spans import SpanSelection
from workers.engine.core.layer_shape import EVERYTHING, LayerShape
from workers.engine.exceptions import UnsupportedModel

HEADS, DIM, VALUE, SIZE = 4, 8, 6, 5
RULE = AttentionRule(0.3, EVERYTHING, None)


def _layer(device: str, kv_heads: int) -> Any:
    shape = LayerShape(kv_heads, DIM, VALUE)
    if device == "cpu":
        return LayerCache(shape, 16, 4, torch.float32)
    return TokenMajorLayer(shape, 16, 4, torch.empty(0), Way.GATHERED)


def _choose(choices: int) -> list[Tensor]:
    """Two spans for each choice of each row, its own among them, and others of its table."""
    torch.manual_seed(1)
    own = torch.tensor(POSITIONS) // SIZE
    groups = own.split([2, 5])
    rows = []
    for each in groups:
        other = torch.randint(0, 4, (len(each), choices))
        other += (other == each[:, None]).long() * torch.where(other > 0, -1, 1)
        rows.append(torch.stack([each[:, None].expand_as(other), other], dim=2))
    return rows


def _expected(query: Tensor, keys: Tensor, values: Tensor, hidden: Tensor) -> Tensor:
    """One row [heads, dim] over keys and values [tokens, heads, dim]."""
    shared = HEADS // keys.shape[1]
    keys, values = keys.repeat_interleave(shared, 1), values.repeat_interleave(shared, 1)
    scores = torch.einsum("hd,thd->ht", query, keys) * RULE.scale
    return torch.einsum("ht,thd->hd", scores.masked_fill(hidden, -torch.inf).softmax(-1), values)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("dense", [0, 100], ids=["gathered", "dense"])
@pytest.mark.parametrize("together", [1, 2**24])
@pytest.mark.parametrize(("kv_heads", "choices"), [(2, 2), (1, 2), (2, 1), (2, 4)])
@pytest.mark.parametrize("is_mixed", [False, True], ids=["chosen", "mixed"])
def test_rows_attend_to_the_visible_tokens_of_their_spans(
    device: str,
    dense: int,
    together: int,
    kv_heads: int,
    choices: int,
    is_mixed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a mixed batch, the rows that decode have chosen all."""
    monkeypatch.setattr(span_attention, "_DENSE", dense)
    monkeypatch.setattr(span_attention, "_TOGETHER", together)
    torch.manual_seed(0)
    keys = [torch.randn(length, kv_heads, DIM) for length in LENGTHS]
    values = [torch.randn(length, kv_heads, VALUE) for length in LENGTHS]
    layer = _layer(device, kv_heads)
    store(layer, keys, values)
    query = torch.randn(len(POSITIONS), HEADS, DIM)
    decoded, chunk = _choose(choices)
    selection = SpanSelection(SIZE, [None if is_mixed else decoded, chunk])
    actual = attend_spans(query, layer, Metadata(), selection, RULE, VALUE)
    chosen = torch.cat([decoded, chunk])
    for row, (owner, position) in enumerate(zip(OWNERS, POSITIONS, strict=True)):
        places = torch.arange(LENGTHS[owner])
        hidden = (places > position).expand(HEADS, -1)
        if not (is_mixed and row < len(decoded)):
            left = torch.stack([~torch.isin(places // SIZE, each) for each in chosen[row]])
            hidden = hidden | left.repeat_interleave(HEADS // choices, 0)
        expected = _expected(query[row], keys[owner], values[owner], hidden)
        torch.testing.assert_close(actual[row], expected)


@pytest.mark.parametrize(("softcap", "sinks"), [(5.0, None), (None, torch.zeros(HEADS))])
def test_caps_and_sinks_are_refused(softcap: float | None, sinks: Tensor | None) -> None:
    rule = AttentionRule(1.0, EVERYTHING, softcap, sinks)
    query = torch.randn(1, HEADS, DIM)
    with pytest.raises(UnsupportedModel, match="neither caps scores"):
        attend_spans(query, None, Metadata(), SpanSelection(SIZE, []), rule, VALUE)


def test_heads_that_share_no_keys_with_a_choice_are_refused() -> None:
    layer = _layer("cpu", 2)
    selection = SpanSelection(SIZE, _choose(3))
    query = torch.randn(len(POSITIONS), HEADS, DIM)
    with pytest.raises(UnsupportedModel, match="share no keys"):
        attend_spans(query, layer, Metadata(), selection, RULE, VALUE)
