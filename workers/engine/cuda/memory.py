"""How much of a GPU's memory the KV cache may take."""

from collections.abc import Callable

import torch


def kv_cache_budget(device: torch.device, utilization: float, profile: Callable[[], object]) -> int:
    """Bytes for the KV cache on a GPU that already holds the weights.

    ``profile`` runs the largest step there can be, so that its peak is known and left free.
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
    """``utilization`` of ``total`` bytes, less what is in use (weights, and what other processes
    hold) and the peak of a step; the rest of ``total`` is for fragmentation and graphs."""
    return int(total * utilization) - (total - free) - step_peak
