"""Which faults are reported as those of a checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch

from workers.engine.checkpoints.reading import checkpoint
from workers.engine.exceptions import UnsupportedModel


def read(path: Path) -> Any:
    return checkpoint.read_model(path, torch.float32, "sdpa")


@pytest.mark.parametrize("reads", [read, checkpoint.check_servable])
def test_a_bug_of_ours_is_not_a_fault_of_the_model(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, reads: Any
) -> None:
    def fail(*_: Any) -> None:
        raise AttributeError("'NoneType' object has no attribute 'tensors'")

    monkeypatch.setattr(checkpoint, "open_files", fail)
    with pytest.raises(AttributeError, match="tensors"):
        reads(tiny_llama)


@pytest.mark.parametrize("fault", [OSError("cut off"), ValueError("no tensors")])
def test_files_that_cannot_be_read_are_refused(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def fail(*_: Any) -> None:
        raise fault

    monkeypatch.setattr(checkpoint, "open_files", fail)
    with pytest.raises(UnsupportedModel, match=f"llama cannot be read .*: {fault}"):
        read(tiny_llama)


@pytest.mark.parametrize("fault", [KeyError("rope"), AttributeError("no head"), RuntimeError("x")])
def test_what_transformers_cannot_read_is_refused(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    class Fails:
        @staticmethod
        def from_pretrained(*_: Any, **__: Any) -> None:
            raise fault

    monkeypatch.setattr(checkpoint, "model_class", lambda _: Fails)
    with pytest.raises(UnsupportedModel, match="llama cannot be read as a causal language model"):
        read(tiny_llama)
