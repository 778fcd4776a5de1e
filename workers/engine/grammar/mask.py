"""The tokens that the grammars of a step's rows allow."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workers.engine.backends.base.transfers import to_device
from workers.engine.grammar.device_masks import forbidden_tokens

Bits = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class GrammarMask:
    """The tokens that the constrained rows of a step may sample; valid until the next fill.

    ``allowed`` [len(rows), words], one bit per token, applies to the logits rows ``rows``;
    ``faults`` holds the rows whose matcher failed and whose mask is meaningless. If the logits are
    not on the CPU, ``moved`` is the inverse of ``allowed``, unpacked, and ``places`` are the rows,
    both on that device.
    """

    rows: list[int]
    allowed: Bits
    faults: dict[int, Exception]
    moved: Tensor | None = None
    places: Tensor | None = None

    @classmethod
    def on(
        cls, device: torch.device, rows: list[int], allowed: Bits, faults: dict[int, Exception]
    ) -> "GrammarMask":
        """Begin to copy the mask to the device of the logits."""
        if device.type == "cpu":
            return cls(rows, allowed, faults)
        [places] = to_device([np.array(rows)], device)
        return cls(rows, allowed, faults, forbidden_tokens(allowed, device), places)

    @property
    def forbidden(self) -> Tensor:
        """[len(rows), at least the vocabulary] of bool."""
        if self.moved is not None:
            return self.moved
        unpacked = np.unpackbits(~self.allowed.view(np.uint8), axis=1, bitorder="little")
        return torch.from_numpy(unpacked).view(torch.bool)

    def forbidden_in(self, lines: list[int]) -> Tensor:
        """Return the same for some rows of the mask."""
        if self.moved is not None:
            return self.moved[lines]
        chosen = np.ascontiguousarray(self.allowed[lines])
        unpacked = np.unpackbits(~chosen.view(np.uint8), axis=1, bitorder="little")
        return torch.from_numpy(unpacked).view(torch.bool)

    def apply(self, logits: Tensor) -> None:
        """Set the logits of forbidden tokens to -inf, in place, without waiting for a device."""
        forbidden = self.forbidden[:, : logits.shape[1]]
        if len(self.rows) == len(logits):
            logits.masked_fill_(forbidden, -torch.inf)
        else:
            rows = self.rows if self.places is None else self.places
            logits[rows] = logits[rows].masked_fill_(forbidden, -torch.inf)


def allow_only(row: Bits, token_id: int) -> None:
    row[:] = 0
    row.view(np.uint32)[token_id // 32] = np.uint32(1 << (token_id % 32))


def allow_some(row: Bits, allowed: Bits | None) -> None:
    """Clear all other bits, except where that would leave no token."""
    if allowed is not None and (row & allowed).any():
        row &= allowed


def forbid(allowed: Bits, avoided: Iterable[tuple[int, frozenset[int]]]) -> None:
    """Clear bits in rows of ``allowed``, except where that would leave no token: a complete
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
    """Return the words that hold the bits of some tokens, and all other bits of each."""
    words = sorted({token_id // 32 for token_id in token_ids})
    bits = np.full(len(words), -1, dtype=np.int32)
    for token_id in token_ids:
        bits.view(np.uint32)[words.index(token_id // 32)] &= ~np.uint32(1 << (token_id % 32))
    return words, bits
