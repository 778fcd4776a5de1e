"""The model's own check at load, of its forward over pages."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.workers.engine.tiny_models import LLAMA, save_model
from workers.engine.backends.base.paged import PagedModel
from workers.engine.backends.cpu.backend import CpuBackend
from workers.engine.backends.parallel.group import Ranks
from workers.engine.build import build_engine
from workers.engine.checkpoints.parity.own_attention import OwnAttention
from workers.engine.checkpoints.parity.trial import Batches
from workers.engine.config import EngineConfig
from workers.engine.exceptions import UnsupportedModel

CONFIG = EngineConfig(device="cpu", dtype="float32", kv_cache_bytes=2**22)
MISMATCH = RuntimeError("expected Float but found BFloat16")


@pytest.mark.parametrize(("error", "way"), [(MISMATCH, "general"), (torch.OutOfMemoryError, "")])
def test_a_model_whose_own_check_fails_runs_the_general_way(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, error: Any, way: str
) -> None:
    """Its miniature is in float32. A GPU without memory has none for the general way either."""
    run = Batches.run

    def fails(self: Any, texts: Any, *args: Any) -> Any:
        if len(texts) == 1:
            raise error
        return run(self, texts, *args)

    monkeypatch.setattr(Batches, "run", fails)
    with nullcontext() if way else pytest.raises(torch.OutOfMemoryError):
        assert build_engine(tiny_llama, CONFIG).forward == way


SPARSE = {
    **LLAMA, "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "head_dim": 16,
}  # fmt: skip
WITHOUT_SDPA = {
    **LLAMA, "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2,
    "head_dim": 16,
}  # fmt: skip


@pytest.mark.represented_by("options0-float32-2-False")
@pytest.mark.parametrize(
    ("options", "dtype", "wrong", "is_refused"),
    [
        (SPARSE, "float32", 2, False),
        (SPARSE, "float32", 3, True),
        (LLAMA, "float32", 1, True),
        (WITHOUT_SDPA, "bfloat16", 2, False),
        (WITHOUT_SDPA, "bfloat16", 3, True),
    ],
)
def test_a_mixture_that_fails_is_tried_with_other_tokens(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
    dtype: str,
    wrong: int,
    is_refused: bool,
) -> None:
    """The first ``wrong`` forwards are off, as rounding makes them that sends tokens to other
    experts."""
    run = Batches.run
    left = [wrong]

    def rounds(self: Any, texts: Any, *args: Any) -> Any:
        logits = run(self, texts, *args)
        if len(texts) > 1 or not left[0]:
            return logits
        left[0] -= 1
        return logits.roll(1, 0)

    monkeypatch.setattr(Batches, "run", rounds)
    engine = build_engine(save_model(tmp_path, options), replace(CONFIG, dtype=dtype))
    assert (engine.forward == "general") == is_refused
    assert ("differs from its own attention by" in caplog.text) == is_refused


def test_a_rank_that_fails_amid_a_forward_of_all_ranks_does_not_try_another_way(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other ranks would take its second forward for the rest of the first."""
    backend, config = CpuBackend(), EngineConfig(tensor_parallel_size=2)
    ranks = Mock(spec=Ranks)
    ranks.try_alone.return_value = None
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, attn_implementation=backend.attention)
    own = OwnAttention(model, backend, config, ranks)

    def fails(*_: Any) -> Any:
        raise MISMATCH

    monkeypatch.setattr(Batches, "run", fails)
    with pytest.raises(RuntimeError, match="expected Float"):
        own.compare(PagedModel(model), {})


def test_what_another_rank_cannot_run_is_not_run_together(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, config = CpuBackend(), EngineConfig(tensor_parallel_size=2)
    ranks = Mock(spec=Ranks)
    ranks.try_alone.return_value = "rank 1: RuntimeError('ptxas failed')"
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, attn_implementation=backend.attention)
    own = OwnAttention(model, backend, config, ranks)
    with pytest.raises(UnsupportedModel, match=r"over pages: rank 1: RuntimeError.*ptxas failed"):
        own.compare(PagedModel(model), {})
