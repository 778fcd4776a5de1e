"""A checkpoint on its way to a GPU: refused if it is too large, and read there if it can be."""

from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from workers.engine.checkpoints.reading import checkpoint
from workers.engine.checkpoints.reading.checkpoint import read_model
from workers.engine.exceptions import UnsupportedModel

GPU = torch.device("cuda", 0)
PARAMETERS = 400 * 64 * 2 + 64 + 2 * (64 * 64 * 3 + 64 * 96 * 3 + 2 * 64)
"""Of the tiny Llama: embeddings and output layer, the last norm, and two layers."""


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that are free on the GPU."""
    given = [2**34]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (given[0], 2**34))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA L4")
    return given


def test_weights_that_do_not_fit_are_refused_before_they_are_read(
    tiny_llama: Path, free: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: read.append(1))
    free[0] = PARAMETERS * 2 - 1
    with pytest.raises(UnsupportedModel, match="the weights in bfloat16 take"):
        read_model(tiny_llama, torch.bfloat16, "eager", GPU)
    free[0] = PARAMETERS * 4 - 1
    with pytest.raises(UnsupportedModel, match="the weights in float32 take"):
        read_model(tiny_llama, "auto", "eager", GPU)
    assert not read


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("has_accelerate", [True, False])
def test_accelerate_saves_the_way_through_main_memory(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, has_accelerate: bool
) -> None:
    found = ModuleSpec("accelerate", None) if has_accelerate else None
    monkeypatch.setattr(checkpoint, "find_spec", lambda _name: found)
    given: dict[str, Any] = {}
    read = AutoModelForCausalLM.from_pretrained

    def note(path: Path, **options: Any) -> Any:
        given.update(options)
        return read(path, **{k: v for k, v in options.items() if k != "device_map"})

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", note)
    read_model(tiny_llama, torch.float32, "eager", GPU)
    assert given.get("device_map") == ({"": GPU} if has_accelerate else None)
    given.clear()
    read_model(tiny_llama, torch.float32, "eager")
    assert "device_map" not in given
