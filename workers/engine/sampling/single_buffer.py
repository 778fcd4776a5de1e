"""A reusable buffer for logits in float32."""

import torch
from torch import Tensor


class SingleBuffer:
    """Memory for float32 copies. The page faults of a fresh tensor in every step would cost more
    than the arithmetic."""

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    def copy(self, logits: Tensor) -> Tensor:
        """Return a float32 copy on the same device, valid until the next call."""
        if self._memory.numel() < logits.numel() or self._memory.device != logits.device:
            self._memory = torch.empty(logits.numel(), device=logits.device)
        return self._memory[: logits.numel()].view(logits.shape).copy_(logits)
