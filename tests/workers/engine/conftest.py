"""Tiny models on disk, built once per run, and engines over them."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from tests.workers.engine import tiny_models
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.speculation import speculation


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from threads, and threads that wait for a busy core lose much."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session", autouse=True)
def _steps_measured_twice() -> Iterator[None]:
    """As on a slow machine. Eight rounds take longer than all else in the start of a tiny model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speculation, "_ROUNDS", (2, 2))
        yield


@pytest.fixture(autouse=True)
def _no_gpu_unless_marked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """``device="auto"`` means the CPU in tests that are not about a GPU, and in their processes."""
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return tiny_models.byte_level_tokenizer()


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save_model(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture
def make_engine(tiny_llama: Path) -> Callable[..., Engine]:
    """An engine over the tiny model, small enough that chunks, queues and blocks all matter."""

    def make(clock: Callable[[], float] = time.monotonic, **settings: Any) -> Engine:
        config = {
            "dtype": "float32",
            "max_num_seqs": 8,
            "max_num_batched_tokens": 24,
            "block_size": 4,
            "kv_cache_bytes": 2**22,
        }
        return build_engine(tiny_llama, EngineConfig(**{**config, **settings}), clock)

    return make


@pytest.fixture(scope="session")
def engine(tiny_llama: Path) -> Engine:
    """One engine that tests share when they only run requests to their end."""
    config = EngineConfig(
        dtype="float32",
        max_num_seqs=8,
        max_num_batched_tokens=24,
        block_size=4,
        kv_cache_bytes=2**22,
    )
    return build_engine(tiny_llama, config)
