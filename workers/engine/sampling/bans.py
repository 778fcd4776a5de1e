"""Tokens that may not be sampled, whatever their logits. Rows under a grammar do not ask for these:
its mask leaves such tokens out, since it must not become empty."""

from collections.abc import Sequence as Rows

import numpy as np
import torch
from torch import Tensor

from workers.engine.backends.base.transfers import to_device
from workers.engine.core.bad_words import list_bad_tokens
from workers.engine.sampling.logits_processors import LogitsProcessor, PlacedRow


class MinTokens(LogitsProcessor):
    """Forbids stop ids and ends of sequence before ``min_tokens``."""

    def __init__(self) -> None:
        self._rows: Rows[PlacedRow] = ()
        self._below: list[int] = []
        self._placed: list[Tensor] = []

    def set_rows(self, rows: Rows[PlacedRow]) -> None:
        self._rows = rows
        self._below = []

    def apply(self, logits: Tensor) -> None:
        below = [
            (row, seq)
            for row, (seq, num_drafted, _) in self._rows
            if seq.is_below_min_tokens(num_drafted)
        ]
        if not below:
            return
        if self._below != [row for row, _ in below]:
            pairs = [(row, id) for row, seq in below for id in seq.choice.stop_checker.end_ids]
            self._placed = to_device(
                [np.array(part) for part in zip(*pairs, strict=True)], logits.device
            )
            self._below = [row for row, _ in below]
        rows, ids = self._placed
        logits[rows, ids] = -torch.inf

    def launch(self, logits: Tensor, pending: Tensor | None) -> None:
        self.apply(logits)  # a sequence counts its tokens in flight


class AllowedTokens(LogitsProcessor):
    """Forbids all tokens but those of ``allowed_token_ids``."""

    def __init__(self) -> None:
        self._rows: Rows[PlacedRow] = ()
        self._placed: list[Tensor] | None = None

    def set_rows(self, rows: Rows[PlacedRow]) -> None:
        self._rows = rows
        self._placed = None

    def apply(self, logits: Tensor) -> None:
        if self._placed is None:
            allowed = [each.sequence.sampling.allowed_token_ids or () for _, each in self._rows]
            rows = np.array([row for row, _ in self._rows])
            owners, ids = np.repeat(rows, [*map(len, allowed)]), np.concatenate(allowed)
            self._placed = to_device([owners, ids, rows], logits.device)
        owners_, ids_, rows_ = self._placed
        kept = logits[owners_, ids_]
        logits[rows_] = -torch.inf
        logits[owners_, ids_] = kept

    def launch(self, logits: Tensor, pending: Tensor | None) -> None:
        self.apply(logits)  # the pending token makes no difference


class BadWords(LogitsProcessor):
    """Forbids the last token of a bad word where its other tokens end the output."""

    def __init__(self) -> None:
        self._rows: Rows[PlacedRow] = ()

    def set_rows(self, rows: Rows[PlacedRow]) -> None:
        self._rows = rows

    def needs_tokens(self) -> bool:
        return any(
            len(word) > 1 for _, each in self._rows for word in each.sequence.sampling.bad_words
        )

    def apply(self, logits: Tensor) -> None:
        pairs = [
            (row, token_id)
            for row, each in self._rows
            for token_id in list_bad_tokens(each.sequence, each.num_drafted)
        ]
        if pairs:
            rows, ids = to_device(
                [np.array(part) for part in zip(*pairs, strict=True)], logits.device
            )
            logits[rows, ids] = -torch.inf

    def launch(self, logits: Tensor, pending: Tensor | None) -> None:
        self.apply(logits)  # a word of several tokens waits for the pending one
