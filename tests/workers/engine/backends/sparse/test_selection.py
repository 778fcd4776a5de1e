"""Which tokens an indexer chooses, and over which pages."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workers.engine.backends.sparse import selection
from workers.engine.backends.sparse.rows import RowGroup
from workers.engine.backends.sparse.selection import choose_tokens, pick


@dataclass
class Pages:
    tokens: Tensor
    block_size: int = 4

    def write(self, slots: Tensor, key: Tensor, value: Tensor) -> None:
        raise NotImplementedError


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([0.0, -0.0, 1.5, -2.0, float("-inf"), 1e-40, 3.0]), min_size=1),
    st.data(),
)
def test_the_highest_are_chosen_and_of_equal_ones_the_earlier(
    scores: list[float], data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(scores)))
    expected = sorted(range(len(scores)), key=lambda place: (-scores[place], place))[:count]
    [chosen] = pick(torch.tensor([scores]), count)
    assert sorted(chosen.tolist()) == sorted(expected)


def test_hidden_tokens_after_a_row_do_not_change_its_ties() -> None:
    scores = torch.tensor([[2.0, 1.0, 1.0, 1.0, 1.0, 0.5]])
    padded = torch.cat([scores, torch.full((1, 9), -torch.inf)], dim=1)
    for count in (1, 2, 3, 4):
        chosen = [sorted(pick(each, count)[0].tolist()) for each in (scores, padded)]
        assert chosen == [list(range(count))] * 2


def _own_choice(
    query: Tensor, weights: Tensor, keys: Tensor, position: int, count: int
) -> list[int]:
    products = torch.einsum("hd,td->ht", query, keys[: position + 1]).relu()
    return sorted((weights @ products).topk(min(count, position + 1)).indices.tolist())


@pytest.mark.parametrize("limit", [1, 2**24])
def test_rows_choose_among_the_tokens_of_their_own_sequences(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two decoding rows, and a chunk of five tokens, over scattered blocks."""
    monkeypatch.setattr(selection, "_SCORED", limit)
    torch.manual_seed(0)
    lengths, count = (17, 9, 22), 6
    sequences = [torch.randn(length, 8) for length in lengths]
    tables = [[3, 9, 1, 14, 7], [2, 11, 5, 0, 0], [4, 6, 8, 10, 12, 13]]
    pages = Pages(torch.full((64, 8), torch.nan))
    pages.tokens[:4] = 0  # the null block
    for keys, table in zip(sequences, tables, strict=True):
        for place, key in enumerate(keys):
            pages.tokens[table[place // 4] * 4 + place % 4] = key
    pages.tokens.nan_to_num_(1e9)  # what no row may see
    groups = [
        RowGroup(0, 2, torch.tensor(tables[:2]), torch.tensor([16, 8]), 4),
        RowGroup(2, 7, torch.tensor(tables[2:]), torch.arange(17, 22), 4),
    ]
    query, weights = torch.randn(7, 5, 8), torch.randn(7, 5)
    chosen = choose_tokens(query, weights, pages, groups, count).places
    owners = [0, 1, 2, 2, 2, 2, 2]
    positions = [16, 8, 17, 18, 19, 20, 21]
    rows = [row for places in chosen if places is not None for row in places.tolist()]
    assert len(rows) == 7
    for row, (owner, position) in enumerate(zip(owners, positions, strict=True)):
        own = _own_choice(query[row], weights[row], sequences[owner], position, count)
        assert sorted(rows[row]) == own


def test_rows_that_see_no_more_than_is_chosen_are_not_scored() -> None:
    pages = Pages(torch.full((16, 8), torch.nan))
    group = RowGroup(0, 1, torch.tensor([[1, 2]]), torch.tensor([7]), 4)
    query, weights = torch.randn(1, 2, 8), torch.randn(1, 2)
    assert choose_tokens(query, weights, pages, [group], 8).places == [None]
    assert choose_tokens(query, weights, pages, [group], 7).places != [None]
