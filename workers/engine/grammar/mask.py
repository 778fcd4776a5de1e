"""What the grammars of a step's rows let them sample."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workers.engine.cuda.masks import forbidden_tokens

Bits = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class GrammarMask:
    """What the constrained rows of a step may sample; valid until the next is filled.

    ``allowed`` [len(rows), words], a bit for each token, is for logits rows ``rows``; ``faults``
    names the rows whose matcher failed, whose mask then means nothing. ``moved`` is the opposite
    of ``allowed``, unpacked, on the device of the logits if that is not the CPU.
    """

    rows: list[int]
    allowed: Bits
    faults: dict[int, Exception]
    moved: Tensor | None = None

    @classmethod
    def on(
        cls, device: torch.device, rows: list[int], allowed: Bits, faults: dict[int, Exception]
    ) -> "GrammarMask":
        """Begin to move the mask to where the logits will be."""
        moved = None if device.type == "cpu" else forbidden_tokens(allowed, device)
        return cls(rows, allowed, faults, moved)

    @property
    def forbidden(self) -> Tensor:
        """[len(rows), at least the vocabulary] of bool."""
        if self.moved is not None:
            return self.moved
        unpacked = np.unpackbits(~self.allowed.view(np.uint8), axis=1, bitorder="little")
        return torch.from_numpy(unpacked).view(torch.bool)

    def apply(self, logits: Tensor) -> None:
        """Make what is not allowed impossible, in place."""
        forbidden = self.forbidden[:, : logits.shape[1]]
        if len(self.rows) == len(logits):
            logits.masked_fill_(forbidden, -torch.inf)
        else:
            logits[self.rows] = logits[self.rows].masked_fill_(forbidden, -torch.inf)


def allow_only(row: Bits, token_id: int) -> None:
    row[:] = 0
    row.view(np.uint32)[token_id // 32] = np.uint32(1 << (token_id % 32))


def forbid(allowed: Bits, avoided: Iterable[tuple[int, frozenset[int]]]) -> None:
    """Clear bits of lines of ``allowed``, except where that would leave nothing: a complete
    grammar may end at any time."""
    lines_by_ids: dict[frozenset[int], list[int]] = {}
    for line, token_ids in avoided:
        if token_ids:
            lines_by_ids.setdefault(token_ids, []).append(line)
    for token_ids, lines in lines_by_ids.items():
        words, kept_bits = _bits_without(token_ids)
        before = allowed[np.ix_(lines, words)]
        allowed[np.ix_(lines, words)] = before & kept_bits
        empty = np.bitwise_or.reduce(allowed[lines], axis=1) == 0
        for i in empty.nonzero()[0]:
            allowed[lines[i], words] = before[i]


@lru_cache(maxsize=256)
def _bits_without(token_ids: frozenset[int]) -> tuple[list[int], Bits]:
    """The words that hold the bits of some tokens, and all other bits of each."""
    words = sorted({token_id // 32 for token_id in token_ids})
    bits = np.full(len(words), -1, dtype=np.int32)
    for token_id in token_ids:
        bits.view(np.uint32)[words.index(token_id // 32)] &= ~np.uint32(1 << (token_id % 32))
    return words, bits
