import pytest

from workers.engine.config import EngineConfig
from workers.engine.model import budget
from workers.engine.model.budget import cache_bytes

GIB = 2**30


@pytest.fixture(autouse=True)
def free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "available_memory", lambda: 16 * GIB)


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_ranks_divide_the_memory_of_the_host_that_they_share(ranks: int) -> None:
    assert ranks * cache_bytes(EngineConfig(tensor_parallel_size=ranks)) == 4 * GIB


def test_a_configured_size_is_that_of_each_rank() -> None:
    assert cache_bytes(EngineConfig(tensor_parallel_size=2, kv_cache_bytes=GIB)) == GIB


def test_a_system_that_does_not_report_its_memory_needs_a_configured_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budget, "available_memory", lambda: None)
    with pytest.raises(ValueError, match="set kv_cache_bytes"):
        cache_bytes(EngineConfig())
