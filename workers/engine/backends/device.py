"""Chooses the device that an engine computes on, and adapts its settings to it."""

import logging
import os
from dataclasses import replace
from pathlib import Path

import torch

from workers.engine.backends.cpu.backend import CpuBackend
from workers.engine.backends.cuda.attention import KERNEL_BLOCK_SIZE, has_paged_kernel
from workers.engine.backends.cuda.backend import CudaBackend
from workers.engine.backends.cuda.kernel_check import why_no_split_kernel
from workers.engine.config import EngineConfig
from workers.engine.core.attention_backend import AttentionBackend

logger = logging.getLogger(__name__)

_DRIVER = Path("/proc/driver/nvidia/version")
"""Exists if the system's kernel has an NVIDIA driver."""
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NONE_VISIBLE = ("", "-1")


def choose_backend(device: torch.device) -> AttentionBackend:
    """Return the attention of a device."""
    return CpuBackend() if device.type == "cpu" else CudaBackend(device)


def adapt(config: EngineConfig) -> EngineConfig:
    """Settings with a concrete device, and with blocks as large as its attention kernel needs: our
    own accepts any size, torch's only large blocks.

    Raises ValueError if the device is not there, or cannot compute with ``dtype``.
    """
    device = resolve_device(config.device)
    if device.type != "cpu" and config.is_rounded:
        raise ValueError(
            f"dtype {config.dtype} is for CPUs, not for {device}: choose another, or device cpu"
        )
    _check_ranks(device, config.tensor_parallel_size)
    num_threads = config.num_threads
    if config.tensor_parallel_size > 1 and device.type == "cpu" and num_threads is None:
        num_threads = max(1, torch.get_num_threads() // config.tensor_parallel_size)
    block_size = config.block_size
    make_current(device)
    if device.type == "cuda" and config.dtype != "float32" and _needs_large_blocks(device):
        block_size = -(-block_size // KERNEL_BLOCK_SIZE) * KERNEL_BLOCK_SIZE
    return replace(config, device=str(device), block_size=block_size, num_threads=num_threads)


def _check_ranks(device: torch.device, size: int) -> None:
    """Raise ValueError if there are fewer GPUs than ranks, each of which needs one."""
    if size == 1:
        return
    if device.type == "cpu":
        if torch.cuda.is_available():  # transformers would put the parts onto it
            raise ValueError(
                f"tensor_parallel_size = {size} on device cpu needs GPUs to be hidden: set "
                "CUDA_VISIBLE_DEVICES to nothing"
            )
        return
    first, count = device.index or 0, torch.cuda.device_count()
    if first + size > count:
        raise ValueError(
            f"tensor_parallel_size = {size} needs as many GPUs from {device} on, and there are "
            f"{count - first}: set it to {count - first} at most, or make more GPUs visible"
        )


def make_current(device: torch.device) -> None:
    """Send this thread's launches to a GPU by default: Triton ignores the device of tensors."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def _needs_large_blocks(device: torch.device) -> bool:
    return why_no_split_kernel(device) is not None and has_paged_kernel(device)


def _cpu_instead() -> str:
    """``cpu``, unless a GPU was probably meant: raises ValueError if this torch is built for CUDA
    and an NVIDIA driver is installed, but too old or broken. ``CUDA_VISIBLE_DEVICES`` may hide all
    GPUs on purpose."""
    if _DRIVER.exists() and os.environ.get(_VISIBLE) not in _NONE_VISIBLE:
        if torch.version.cuda is not None:
            raise ValueError(
                "device auto found an NVIDIA driver that this torch cannot use "
                f"({_first_line(_DRIVER)}; torch is built for CUDA {torch.version.cuda}): update "
                "the driver, install a torch for its CUDA version, or choose device cpu"
            )
        logger.warning("the NVIDIA GPU is not used: this torch is built without CUDA")
    return "cpu"


def _first_line(path: Path) -> str:
    return path.read_text("utf-8").split("\n", 1)[0]


def resolve_device(wanted: str) -> torch.device:
    """``auto`` is the current GPU if there is one, else the CPU. Raises ValueError."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else _cpu_instead()
    device = torch.device(wanted)
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise ValueError(f"device {wanted!r} needs an NVIDIA GPU and a build of torch for CUDA")
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise ValueError(f"device {wanted!r}: there are {torch.cuda.device_count()} GPUs")
    return torch.device("cuda", index)
