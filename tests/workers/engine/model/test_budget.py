import os

import pytest

from workers.engine.config import EngineConfig
from workers.engine.model.budget import cache_bytes

GIB = 2**30


@pytest.fixture(autouse=True)
def free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"SC_AVPHYS_PAGES": 16 * GIB // 4096, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_ranks_divide_the_memory_of_the_host_that_they_share(ranks: int) -> None:
    assert ranks * cache_bytes(EngineConfig(tensor_parallel_size=ranks)) == 4 * GIB


def test_a_configured_size_is_that_of_each_rank() -> None:
    assert cache_bytes(EngineConfig(tensor_parallel_size=2, kv_cache_bytes=GIB)) == GIB
