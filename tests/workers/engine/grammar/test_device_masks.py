import numpy as np
import torch

from workers.engine.grammar.device_masks import forbidden_tokens


def test_bits_are_unpacked_lowest_first() -> None:
    bits = np.random.default_rng(0).integers(-(2**31), 2**31, (5, 7)).astype(np.int32)
    expected = np.unpackbits(~bits.view(np.uint8), axis=1, bitorder="little").astype(bool)
    forbidden = forbidden_tokens(bits, torch.device("cpu"))
    assert forbidden.dtype == torch.bool
    np.testing.assert_array_equal(forbidden.numpy(), expected)
