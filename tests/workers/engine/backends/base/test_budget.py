from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from workers.engine.backends.base import budget
from workers.engine.backends.base.budget import CacheBudget, cache_bytes, count_blocks
from workers.engine.config import EngineConfig
from workers.engine.exceptions import TooLarge

GIB = 2**30
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "available_memory", lambda: 16 * GIB)


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_ranks_divide_the_memory_of_the_host_that_they_share(ranks: int) -> None:
    assert ranks * cache_bytes(EngineConfig(tensor_parallel_size=ranks), CPU) == 4 * GIB


def test_a_configured_size_is_that_of_each_rank() -> None:
    assert cache_bytes(EngineConfig(tensor_parallel_size=2, kv_cache_bytes=GIB), CPU) == GIB


def test_a_system_that_does_not_report_its_memory_needs_a_configured_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budget, "available_memory", lambda: None)
    with pytest.raises(ValueError, match="set kv_cache_bytes"):
        cache_bytes(EngineConfig(), CPU)


SMALL = EngineConfig(max_num_seqs=4, block_size=16)


@pytest.mark.parametrize(
    ("available", "block_bytes", "state_bytes", "expected"),
    [
        (1000, 100, 0, 10),
        (10_000, 100, 0, 12),  # four sequences of 40 tokens
        (1000, 100, 50, 8),
        (200, 0, 50, 12),
        (100, 100, 0, 1),
    ],
)
def test_blocks_fill_the_memory_that_states_leave_and_no_more_than_sequences_need(
    available: int, block_bytes: int, state_bytes: int, expected: int
) -> None:
    assert count_blocks(available, block_bytes, 40, SMALL, state_bytes) == expected


@pytest.mark.parametrize(
    ("available", "is_caching", "expected"),
    [
        (100_000, True, (12, 16, 2)),  # four for each slot
        (100_000, False, (12, 0, 2)),
        (840, True, (5, 3, 1)),
        (840, False, (6, 0, 2)),
        (280, True, (1, 0, 0)),
    ],
)
def test_copies_for_drafts_leave_most_of_what_is_spare_to_saved_states(
    available: int, is_caching: bool, expected: tuple[int, int, int]
) -> None:
    config = replace(SMALL, enable_prefix_caching=is_caching)
    loaded = Mock(block_bytes=lambda size: 100, max_model_len=40)
    assert CacheBudget.divide(available, loaded, 40, config, num_drafting=2) == expected


@pytest.mark.parametrize(
    ("available", "state_bytes", "said"),
    [
        (99, 0, "takes 100 bytes, and there are 99: raise kv_cache_bytes"),
        (150, 20, "takes 100 bytes, and 4 states of 20 bytes leave 70: raise kv_cache_bytes"),
    ],
)
def test_memory_without_room_for_a_block_is_refused_with_figures(
    available: int, state_bytes: int, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        count_blocks(available, 100, 40, replace(SMALL, kv_cache_bytes=available), state_bytes)
    with pytest.raises(TooLarge, match=said):  # free memory varies
        count_blocks(available, 100, 40, SMALL, state_bytes)


def test_on_a_gpu_caches_get_what_the_largest_step_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(budget, "kv_cache_budget", lambda *args: [asked.append(args), GIB][1])
    gpu, config = torch.device("cuda", 1), replace(SMALL, gpu_memory_utilization=0.5)
    assert cache_bytes(config, gpu, profile := lambda: None) == GIB
    assert asked == [(gpu, 0.5, profile)]
