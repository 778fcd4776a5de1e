"""Which spans of tokens an indexer chooses, and over which pages."""

import pytest
import torch
from torch import Tensor

from tests.workers.engine.backends.sparse.scattered import (
    LENGTHS,
    OWNERS,
    POSITIONS,
    row_groups,
    store,
)
from workers.engine.backends.cpu.kv_cache import LayerCache
from workers.engine.backends.sparse import spans as spans_module
from workers.engine.backends.sparse.rows import RowGroup
from workers.engine.backends.sparse.spans import SpanRule, SpanSelection, choose_spans
from workers.engine.core.layer_shape import LayerShape

HEADS, DIM = 2, 8


def _own_choice(query: Tensor, keys: Tensor, position: int, rule: SpanRule) -> set[int]:
    """The visible spans that one head of one row chooses."""
    scores = (keys[: position + 1] @ query).split(rule.size)
    ranks = {span: float(each.max()) for span, each in enumerate(scores)}
    for back in range(rule.nearest):
        ranks[max(0, position // rule.size - back)] = torch.inf
    return set(sorted(ranks, key=lambda span: -ranks[span])[: rule.count])


@pytest.mark.parametrize("limit", [1, 2**24])
@pytest.mark.parametrize("rule", [SpanRule(3, 2, 1), SpanRule(5, 2, 2), SpanRule(4, 3, 0)], ids=str)
def test_heads_choose_among_the_spans_of_their_own_sequences(
    rule: SpanRule, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans_module, "_SCORED", limit)
    torch.manual_seed(0)
    keys = [torch.randn(length, 1, DIM) for length in LENGTHS]
    pages = LayerCache(LayerShape(1, DIM, 0), 16, 4, torch.float32)
    store(pages, keys, [each[..., :0] for each in keys])
    query = torch.randn(len(POSITIONS), HEADS, DIM)
    chosen = choose_spans(query, pages, row_groups(), rule).chosen
    rows = [row for each in chosen if each is not None for row in each]
    assert len(rows) == len(POSITIONS)
    for row, (owner, position) in enumerate(zip(OWNERS, POSITIONS, strict=True)):
        for head in range(HEADS):
            numbers = rows[row][head].tolist()
            assert len(set(numbers)) == rule.count
            visible = {number for number in numbers if number * rule.size <= position}
            assert visible == _own_choice(query[row, head], keys[owner][:, 0], position, rule)


def test_rows_that_see_no_more_spans_than_are_chosen_are_not_scored() -> None:
    pages = LayerCache(LayerShape(1, DIM, 0), 4, 4, torch.float32)
    group = RowGroup(0, 1, torch.tensor([[1, 2]]), torch.tensor([7]), 4)
    query = torch.randn(1, HEADS, DIM)
    whole = choose_spans(query, pages, [group], SpanRule(3, 3, 1))
    assert whole.chosen == [None]
    assert whole.is_whole
    assert not choose_spans(query, pages, [group], SpanRule(3, 2, 1)).is_whole
    assert not SpanSelection(3, []).is_whole
