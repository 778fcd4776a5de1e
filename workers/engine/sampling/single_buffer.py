"""Logits in float32."""

import torch
from torch import Tensor


class SingleBuffer:
    """Memory for float32 copies, used again each time: a fresh tensor of megabytes in every step
    would cost more in page faults than the arithmetic."""

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    def copy(self, logits: Tensor) -> Tensor:
        """On the same device; valid until the next call."""
        if self._memory.numel() < logits.numel() or self._memory.device != logits.device:
            self._memory = torch.empty(logits.numel(), device=logits.device)
        return self._memory[: logits.numel()].view(logits.shape).copy_(logits)
