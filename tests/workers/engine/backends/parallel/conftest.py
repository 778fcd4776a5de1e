"""Engines whose model is computed by several processes, and the same model in one."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.workers.engine import tiny_models
from tests.workers.engine.backends.parallel.families import FAMILIES
from tests.workers.engine.backends.parallel.forking import ForkedFollower
from workers.engine.backends.parallel import followers
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.engine import Engine

Make = Callable[..., Engine]


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's model, made once."""
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            path = tmp_path_factory.mktemp(family)
            made[family] = tiny_models.save_model(path, FAMILIES[family])
        return made[family]

    return folder


@pytest.fixture(autouse=True)
def forked_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "_launch", ForkedFollower)


@pytest.fixture
def make_ranks(folder_of: Callable[[str], Path]) -> Iterator[Make]:
    """Make an engine of a family and a number of ranks, stopped after the test."""
    made: list[Engine] = []

    def make(family: str, ranks: int, **settings: object) -> Engine:
        options = {
            "device": "cpu",
            "dtype": "float32",
            "max_num_seqs": 8,
            "max_num_batched_tokens": 24,
            "kv_cache_bytes": 2**20,
            "tensor_parallel_size": ranks,
        }
        config = EngineConfig(**{**options, **settings})  # type: ignore[arg-type]
        engine = build_engine(folder_of(family), config)
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.stop()
