"""Mixtures of experts in captured steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_HOPPER = (9, 0)


@contextmanager
def experts_that_do_not_wait(
    model: Any, device: torch.device, dtype: torch.dtype
) -> Iterator[None]:
    """Run a model's experts as batched products inside the context, where torch's grouped product
    would read its group sizes back: below compute capability 9.0, or for a type other than
    bfloat16.

    Batched products copy the chosen experts' weights for each token, which suits only few tokens.
    """
    grouped = dtype == torch.bfloat16 and torch.cuda.get_device_capability(device) >= _HOPPER
    if grouped or not hasattr(model, "set_experts_implementation"):
        yield
        return
    before = model.get_experts_implementation()
    model.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        model.set_experts_implementation(before)
