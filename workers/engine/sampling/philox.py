"""Random numbers as a pure function of seed, prompt, choice and position.

Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random
numbers: as easy as 1, 2, 3" (SC 2011), vectorised over rows.
"""

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = np.array([0x9E3779B9, 0xBB67AE85], dtype=np.uint32)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)

Words = NDArray[np.uint32]


def philox4x32(counter: Words, key: Words) -> Words:
    """Four random words for each row of ``counter`` [n, 4] under ``key`` [n, 2]."""
    c0, c1, c2, c3 = (counter[:, i].astype(np.uint64) for i in range(4))
    key = key.copy()
    for _ in range(_ROUNDS):
        product0, product2 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = (product2 >> _WORD) ^ c1 ^ key[:, 0], (product0 >> _WORD) ^ c3 ^ key[:, 1]
        c1, c3 = product2 & _LOW, product0 & _LOW
        key += _WEYL
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def stream_keys(seeds: list[int]) -> Words:
    """Philox keys [n, 2] for seeds, taken modulo 2**64."""
    values = np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds], dtype=np.uint64)
    return np.stack([values & _LOW, values >> _WORD], axis=1).astype(np.uint32)


def uniform(key: Words, position: Words, choice: Words, prompt: Words) -> NDArray[np.float64]:
    """Return one number in [0, 1) with 53 random bits per row, for a token of a choice of a
    prompt."""
    counter = np.stack([position, choice, prompt, np.zeros_like(position)], axis=1)
    words = philox4x32(counter, key).astype(np.uint64)
    bits = (words[:, 0] << np.uint64(21)) ^ (words[:, 1] >> np.uint64(11))
    return bits.astype(np.float64) * 2.0**-53
