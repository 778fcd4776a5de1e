"""Copies of logits in float32, in one memory."""

import torch

from workers.engine.sampling.single_buffer import SingleBuffer


def test_copies_are_exact_and_share_memory_that_grows() -> None:
    buffer = SingleBuffer()
    large = torch.arange(12, dtype=torch.bfloat16).view(3, 4)
    first = buffer.copy(large)
    assert first.dtype == torch.float32
    assert first.tolist() == large.tolist()
    second = buffer.copy(large[1:])
    assert second.tolist() == large[1:].tolist()
    assert second.data_ptr() == first.data_ptr()
    first.zero_()
    assert large.sum() == 66
