from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from workers.engine.backends import device
from workers.engine.backends.device import adapt, resolve_device
from workers.engine.config import EngineConfig


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A machine with so many GPUs, with torch's paged kernel or not, and with ours or not."""

    def pretend(gpus: int, kernel: bool = True, split: bool = False) -> None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        current = [0]
        monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
        monkeypatch.setattr(
            torch.cuda, "set_device", lambda device: current.__setitem__(0, device.index)
        )
        monkeypatch.setattr(device, "has_paged_kernel", lambda _device: kernel)
        reason = None if split else "not tried"
        monkeypatch.setattr(device, "why_no_split_kernel", lambda _device: reason)

    return pretend


@pytest.mark.parametrize(
    ("gpus", "wanted", "found"),
    [
        (0, "auto", "cpu"),
        (0, "cpu", "cpu"),
        (2, "auto", "cuda:0"),
        (2, "cpu", "cpu"),
        (2, "cuda", "cuda:0"),
        (2, "cuda:1", "cuda:1"),
    ],
)
def test_the_device(machine: Callable[..., None], gpus: int, wanted: str, found: str) -> None:
    machine(gpus)
    assert resolve_device(wanted) == torch.device(found)
    assert adapt(EngineConfig(device=wanted)).device == found


def test_int8_is_for_cpus(machine: Callable[..., None]) -> None:
    machine(1)
    assert adapt(EngineConfig(device="cpu", dtype="int8")).dtype == "int8"
    with pytest.raises(ValueError, match="int8 is for CPUs"):
        adapt(EngineConfig(device="auto", dtype="int8"))


@pytest.mark.parametrize(
    ("gpus", "wanted", "complaint"),
    [(0, "cuda", "needs an NVIDIA GPU"), (2, "cuda:2", "there are 2 GPUs")],
)
def test_a_device_that_is_not_there_is_refused(
    machine: Callable[..., None], gpus: int, wanted: str, complaint: str
) -> None:
    machine(gpus)
    with pytest.raises(ValueError, match=complaint):
        resolve_device(wanted)


def test_a_driver_that_this_torch_cannot_use_is_an_error(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine(0)
    driver = tmp_path / "version"
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.1\nGCC version: 12\n")
    monkeypatch.setattr(device, "_DRIVER", driver)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(ValueError, match=r"Module  535\.1; torch is built for CUDA 13\.0"):
        resolve_device("auto")
    assert resolve_device("cpu").type == "cpu"


@pytest.mark.parametrize("visible", ["", "-1"])
def test_gpus_that_are_hidden_are_not_meant(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, visible: str
) -> None:
    machine(0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(device, "_DRIVER", tmp_path)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert resolve_device("auto").type == "cpu"


def test_a_gpu_that_a_torch_without_cuda_leaves_idle_is_reported(
    machine: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine(0)
    monkeypatch.setattr(device, "_DRIVER", tmp_path)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert resolve_device("auto").type == "cpu"
    assert "built without CUDA" in caplog.text


@pytest.mark.parametrize(
    ("gpus", "kernel", "dtype", "wanted", "block_size"),
    [
        (1, True, "bfloat16", 16, 256),
        (1, True, "auto", 300, 512),
        (1, True, "float32", 16, 16),
        (1, False, "bfloat16", 16, 16),
        (0, True, "bfloat16", 16, 16),
    ],
)
def test_blocks_are_as_large_as_the_kernel_needs(
    machine: Callable[..., None], gpus: int, kernel: bool, dtype: str, wanted: int, block_size: int
) -> None:
    machine(gpus, kernel)
    assert adapt(EngineConfig(dtype=dtype, block_size=wanted)).block_size == block_size


def test_our_kernel_leaves_blocks_as_they_are(machine: Callable[..., None]) -> None:
    machine(1, split=True)
    assert adapt(EngineConfig(dtype="bfloat16", block_size=16)).block_size == 16


def test_our_kernel_is_tried_on_the_gpu_that_will_run_it(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton launches on the current GPU, wherever the tensors are."""
    machine(2)
    tried = []
    monkeypatch.setattr(
        device, "why_no_split_kernel", lambda _device: tried.append(torch.cuda.current_device())
    )
    adapt(EngineConfig(device="cuda:1", dtype="bfloat16"))
    assert tried == [1]
