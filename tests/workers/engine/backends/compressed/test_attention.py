"""Attention to near tokens and entries, held to a softmax over lists of keys."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from workers.engine.backends.base.cache_probe import AttentionRule
from workers.engine.backends.compressed import attention
from workers.engine.backends.compressed.attention import attend_entries
from workers.engine.backends.compressed.compressors import PagedCompressor
from workers.engine.backends.compressed.lines import EntryGroup, find_entries
from workers.engine.backends.cpu.attention import AttentionMetadata
from workers.engine.backends.cpu.backend import CpuBackend
from workers.engine.backends.cuda.backend import CudaBackend
from workers.engine.backends.cuda.metadata import PagedMetadata
from workers.engine.backends.sparse.selection import Selection
from workers.engine.core.attention_backend import Part
from workers.engine.core.layer_shape import LayerShape, Visible
from workers.engine.exceptions import UnsupportedModel

DIM, HEADS = 6, 3
PARTS = [(40, 1), (1, 1), (22, 1), (31, 9), (0, 13)]
"""Of each sequence, how many tokens are before those of the batch, and how many these are."""
CPU = torch.device("cpu")


@dataclass
class Pages:
    """A layer's pages in a random order, with the keys and entries of each sequence."""

    metadata: AttentionMetadata | PagedMetadata
    module: nn.Module
    shape: LayerShape
    keys: list[Tensor]
    entries: list[Tensor]
    block_size: int

    @classmethod
    def draw(cls, backend: CpuBackend | CudaBackend, shape: LayerShape, block_size: int) -> "Pages":
        """What belongs to no sequence, and entries that are not made yet, are large."""
        assert shape.rate is not None
        lengths = [before + size for before, size in PARTS]
        counts = [-(-length // block_size) for length in lengths]
        module = nn.Module()
        cache = backend.make_cache({module: shape}, 1 + sum(counts), block_size, torch.float32)
        order = iter((1 + torch.randperm(sum(counts))).tolist())
        tables = [[next(order) for _ in range(count)] for count in counts]
        layer = cache.layers[module]
        layer.tokens.fill_(1e3)
        lines, keys, entries = shape.num_lines(block_size), [], []
        for table, length in zip(tables, lengths, strict=True):
            keys.append(torch.randn(length, DIM))
            entries.append(torch.randn(length // shape.rate, DIM))
            for place, key in enumerate(keys[-1]):
                layer.tokens[table[place // block_size] * lines + place % block_size] = key
            used = dict.fromkeys(table, shape.num_token_lines(block_size))
            for number, entry in enumerate(entries[-1]):
                block = table[((number + 1) * shape.rate - 1) // block_size]
                layer.tokens[block * lines + used[block]] = entry
                used[block] += 1
                assert used[block] <= lines
        parts = [Part(*part, table) for part, table in zip(PARTS, tables, strict=True)]
        metadata = backend.batch(cache, parts, block_size)
        return cls(metadata, module, shape, keys, entries, block_size)

    def groups(self) -> list[EntryGroup]:
        rows = self.metadata.row_groups(self.block_size)
        return [find_entries(group, self.shape) for group in rows]


class Choice(PagedCompressor):
    """Stands for a compressor whose rows have chosen."""

    def __init__(self, pages: Pages, selection: Selection | None) -> None:
        self.attention, self.selection = pages.module, selection
        self._groups = pages.groups()

    def entry_groups(self, _metadata: object) -> list[EntryGroup]:
        return self._groups


def attend_plainly(
    query: Tensor, pages: Pages, rule: AttentionRule, chosen: list[set[int] | None]
) -> Tensor:
    rows = []
    owners = [
        (i, at) for i, (before, size) in enumerate(PARTS) for at in range(before, before + size)
    ]
    assert pages.shape.rate is not None
    for (i, at), heads, choice in zip(owners, query, chosen, strict=True):
        first = 0 if rule.visible.window is None else max(0, at + 1 - rule.visible.window)
        ended = range((at + 1) // pages.shape.rate)
        wanted = [n for n in ended if choice is None or n in choice]
        keys = torch.cat([pages.keys[i][first : at + 1], pages.entries[i][wanted]])
        scores = heads @ keys.T * rule.scale
        if rule.sinks is not None:
            scores = torch.cat([scores, rule.sinks[:, None]], dim=1)
        rows.append(scores.softmax(-1)[:, : len(keys)] @ keys)
    return torch.stack(rows)


@pytest.mark.parametrize("backend", [CpuBackend(), CudaBackend(CPU)], ids=["cpu", "cuda"])
@given(data=st.data())
def test_rows_attend_to_what_is_near_and_to_what_they_chose(
    backend: CpuBackend | CudaBackend, data: st.DataObject
) -> None:
    """With rates that divide the size of a block, are divided by it, and neither."""
    torch.manual_seed(data.draw(st.integers(0, 99)))
    rate, block_size = data.draw(st.integers(1, 9)), data.draw(st.sampled_from([2, 4, 5, 16]))
    window = data.draw(st.sampled_from([1, 7, 100, None]))
    count = data.draw(st.sampled_from([None, 1, 3, 8]))
    pages = Pages.draw(backend, LayerShape(1, DIM, 0, Visible(window), rate=rate), block_size)
    sinks = torch.randn(HEADS) if data.draw(st.booleans()) else None
    rule = AttentionRule(0.5, Visible(window), None, sinks)
    query = torch.randn(sum(size for _, size in PARTS), HEADS, DIM)
    places: list[Tensor | None] = []
    chosen: list[set[int] | None] = []
    for group in pages.groups():
        rows = group.end - group.start
        if count is None or group.width <= count:
            places.append(None)
            chosen += [None] * rows
        else:
            picked = torch.rand(rows, group.width).topk(count).indices
            places.append(picked)
            chosen += [set(row) for row in picked.tolist()]
    selection = None if count is None else Selection(places)
    actual = attend_entries(query, Choice(pages, selection), pages.metadata, rule)
    expected = attend_plainly(query, pages, rule, chosen)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_rows_of_one_sequence_may_be_too_many_for_one_product(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention, "_TOGETHER", 200)
    torch.manual_seed(0)
    pages = Pages.draw(CpuBackend(), LayerShape(1, DIM, 0, Visible(7), rate=4), 4)
    rule = AttentionRule(0.5, Visible(7), None)
    query = torch.randn(sum(size for _, size in PARTS), HEADS, DIM)
    actual = attend_entries(query, Choice(pages, None), pages.metadata, rule)
    expected = attend_plainly(query, pages, rule, [None] * len(query))
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "rule",
    [AttentionRule(1.0, Visible(7), 5.0), AttentionRule(1.0, Visible(chunk=8), None)],
    ids=["softcap", "chunks"],
)
def test_other_rules_are_refused(rule: AttentionRule) -> None:
    pages = Pages.draw(CpuBackend(), LayerShape(1, DIM, 0, rate=4), 4)
    query = torch.zeros(sum(size for _, size in PARTS), HEADS, DIM)
    with pytest.raises(UnsupportedModel, match="neither caps scores nor sees chunks"):
        attend_entries(query, Choice(pages, None), pages.metadata, rule)
