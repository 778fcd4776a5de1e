"""Block tables on the device follow those of the sequences, whatever happens to slots."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.backends.cuda.block_tables import BlockTables
from workers.engine.core.plan import NULL_BLOCK

SLOTS, WIDTH = 3, 5
blocks = st.lists(st.integers(1, 99), max_size=WIDTH)


def sequence(slot: int, block_ids: list[int]) -> Any:
    return SimpleNamespace(slot=slot, block_ids=block_ids)


@given(st.lists(st.tuples(st.integers(0, SLOTS - 1), st.booleans(), blocks), max_size=20))
def test_the_device_has_each_slots_blocks_and_null_blocks(
    steps: list[tuple[int, bool, list[int]]],
) -> None:
    tables = BlockTables(SLOTS, WIDTH, torch.device("cpu"))
    memory = tables.on_device.data_ptr()
    held: dict[int, list[int]] = {slot: [] for slot in range(SLOTS)}
    for slot, grows, new in steps:
        if grows:
            held[slot] = (held[slot] + new)[:WIDTH]
            tables.follow([], [sequence(slot, held[slot])])
        else:
            held[slot] = new
            tables.follow([sequence(slot, new)], [])
        expected = [held[s] + [NULL_BLOCK] * (WIDTH - len(held[s])) for s in range(SLOTS)]
        assert tables.on_device.tolist() == [*expected, [NULL_BLOCK] * WIDTH]
    assert tables.on_device.data_ptr() == memory
    assert tables.rows(torch.tensor([2, SLOTS]), 2).tolist() == [
        [*held[2], NULL_BLOCK, NULL_BLOCK][:2],
        [NULL_BLOCK] * 2,
    ]


def test_places() -> None:
    tables = BlockTables(2, 3, torch.device("cpu"))
    tables.follow([sequence(0, [5, 2]), sequence(1, [7])], [])
    places = tables.places(np.array([0, 1, 0]), np.array([6, 3, 1]), 4)
    assert places.tolist() == [2 * 4 + 2, 7 * 4 + 3, 5 * 4 + 1]
