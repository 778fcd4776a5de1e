"""Computes the size of the KV cache on a GPU."""

from collections.abc import Callable

import torch


def kv_cache_budget(device: torch.device, utilization: float, profile: Callable[[], object]) -> int:
    """Bytes for the KV cache on a GPU that already holds the weights.

    ``profile`` runs the largest possible step; its peak stays free.
    """
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    profile()
    torch.cuda.synchronize(device)
    step_peak = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return what_remains(free, total, step_peak, utilization)


def what_remains(free: int, total: int, step_peak: int, utilization: float) -> int:
    """``utilization`` of ``total`` bytes, minus the bytes in use (weights and other processes) and
    the peak of a step. The rest of ``total`` is for fragmentation and graphs."""
    return int(total * utilization) - (total - free) - step_peak
