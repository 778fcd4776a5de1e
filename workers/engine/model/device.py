"""Where an engine computes, and what follows from that for its settings."""

from dataclasses import replace

import torch

from workers.engine.config import EngineConfig
from workers.engine.cuda.attention import KERNEL_BLOCK_SIZE, has_paged_kernel


def adapt(config: EngineConfig) -> EngineConfig:
    """Settings with the device made concrete, and blocks as large as its attention kernel needs.

    Raises ValueError if the device is not there, or cannot compute with ``dtype``.
    """
    device = resolve_device(config.device)
    if device.type != "cpu" and config.dtype == "int8":
        raise ValueError(f"dtype int8 is for CPUs, not for {device}: choose another, or device cpu")
    block_size = config.block_size
    if device.type == "cuda" and config.dtype != "float32" and has_paged_kernel(device):
        block_size = -(-block_size // KERNEL_BLOCK_SIZE) * KERNEL_BLOCK_SIZE
    return replace(config, device=str(device), block_size=block_size)


def resolve_device(wanted: str) -> torch.device:
    """``auto`` is the current GPU if there is one, else the CPU. Raises ValueError."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(wanted)
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise ValueError(f"device {wanted!r} needs an NVIDIA GPU and a build of torch for CUDA")
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise ValueError(f"device {wanted!r}: there are {torch.cuda.device_count()} GPUs")
    return torch.device("cuda", index)
