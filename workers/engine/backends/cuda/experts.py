"""Mixtures of experts in captured steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_HOPPER = (9, 0)


def must_copy_experts(model: Any, device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether a captured step copies the weights of each token's experts."""
    has_experts = any("experts" in name for name, _ in model.named_modules())
    return has_experts and not _has_grouped_product(device, dtype)


def _has_grouped_product(device: torch.device, dtype: torch.dtype) -> bool:
    return dtype == torch.bfloat16 and torch.cuda.get_device_capability(device) >= _HOPPER


@contextmanager
def experts_that_do_not_wait(
    model: Any, device: torch.device, dtype: torch.dtype
) -> Iterator[None]:
    """Run a model's experts as batched products inside the context, where torch's grouped product
    would read its group sizes back: below compute capability 9.0, or for a type other than
    bfloat16.

    Batched products copy the chosen experts' weights for each token, which suits only few tokens.
    """
    if _has_grouped_product(device, dtype) or not hasattr(model, "set_experts_implementation"):
        yield
        return
    before = model.get_experts_implementation()
    model.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        model.set_experts_implementation(before)
