"""Ranks fuse the same operations, or none: the other rank is a mock."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.workers.engine.backends.cuda.without_gpu.plain_kernels import PlainKernels
from workers.engine.backends.cuda import fusion
from workers.engine.backends.cuda.backend import CudaBackend
from workers.engine.checkpoints.loader import wrap_model
from workers.engine.config import EngineConfig


@pytest.mark.parametrize("here", [True, False])
def test_ranks_agree_on_fusion(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, here: bool
) -> None:
    """One of two ranks fuses, this one or the other."""
    monkeypatch.setattr(fusion, "kernels", PlainKernels)
    backend = CudaBackend(torch.device("cpu"))
    backend.fuses = here
    seen: list[int] = []

    class Two:
        def smallest(self, number: int) -> int:
            seen.append(int(number))
            return 0

        def try_alone(self, attempt: Callable[[], object]) -> None:
            attempt()

        def largest(self, number: float) -> float:
            return number

    model = AutoModelForCausalLM.from_pretrained(tiny_llama, attn_implementation=backend.attention)
    config = EngineConfig(device="cpu", dtype="float32", block_size=4)
    ranks: Any = Two()
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    loaded = wrap_model(model, tokenizer, backend, config, ranks=ranks)
    assert loaded.paged.fusion is None  # type: ignore[union-attr]
    assert seen == [here]
    assert ("since another rank does not fuse them" in caplog.text) == here
