"""Runs texts over pages without an engine, to compare their logits with a reference."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from workers.engine.backends.base.paged import PagedModel
from workers.engine.backends.recurrent.batch import StateBatch, StatePiece
from workers.engine.backends.recurrent.states import StateTable
from workers.engine.core.attention_backend import AttentionBackend, Part
from workers.engine.core.layer_shape import LayerShape

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
"""Relative error of logits that rounding alone explains; a wrong mask is off by far more."""

NOISES = 3.0
"""Two correct forwards of a model may differ by this many times as much as two others do."""


class Batches:
    """Runs texts over a separate cache: each prompt in chunks, then token by token."""

    def __init__(
        self,
        paged: PagedModel,
        backend: AttentionBackend,
        block_size: int,
        shapes: dict[nn.Module, LayerShape],
    ) -> None:
        self._paged, self._backend, self._block_size = paged, backend, block_size
        self._shapes = shapes

    def run(
        self, texts: Sequence[list[int]], prompts: Sequence[int], chunks: Sequence[int]
    ) -> Tensor:
        """Return logits [tokens, vocabulary] after each token of each text."""
        model: Any = self._paged.model
        size, device = self._block_size, model.device
        widths = [-(-len(text) // size) for text in texts]
        ends = list(accumulate(widths, initial=1))
        tables = [list(range(a, b)) for a, b in pairwise(ends)]
        cache = self._backend.make_cache(self._shapes, ends[-1], size, model.dtype)
        mixers = self._paged.mixers
        table = StateTable({} if mixers is None else mixers.shapes, len(texts), device)
        logits: list[list[Tensor]] = [[] for _ in texts]
        done = [0] * len(texts)
        while any(n < len(text) for n, text in zip(done, texts, strict=True)):
            sizes = [
                min(c, p - n) if n < p else int(n < len(t))
                for n, p, c, t in zip(done, prompts, chunks, texts, strict=True)
            ]
            order = sorted((i for i, n in enumerate(sizes) if n), key=lambda i: sizes[i] > 1)
            parts = [Part(done[i], sizes[i], tables[i]) for i in order]
            ids = [t for i in order for t in texts[i][done[i] : done[i] + sizes[i]]]
            places = [p for i in order for p in range(done[i], done[i] + sizes[i])]
            rows = self._paged(
                torch.tensor(ids, device=device),
                torch.tensor(places, device=device),
                self._backend.batch(cache, parts, size),
                torch.arange(len(ids), device=device),
                self._states(table, [(i, sizes[i], done[i]) for i in order]),
            ).to(torch.float32, copy=True)
            for i, part in zip(order, torch.split(rows, [sizes[i] for i in order]), strict=True):
                logits[i].append(part)
                done[i] += sizes[i]
        return torch.cat([part for each in logits for part in each])

    def _states(
        self, table: StateTable, parts: Sequence[tuple[int, int, int]]
    ) -> StateBatch | None:
        """Return the states of a flat batch. A part has its text's row, its size, and the position
        of its first token."""
        if (mixers := self._paged.mixers) is None:
            return None
        starts = accumulate((size for _, size, _ in parts), initial=0)
        pieces = [
            StatePiece(row, start, size, position)
            for (row, size, position), start in zip(parts, starts, strict=False)
        ]
        return StateBatch(table, pieces, mixers.continues)


def distance(actual: Tensor, expected: Tensor) -> float:
    """Return the relative error of logits."""
    return float((actual - expected).norm() / expected.norm())


def loss(actual: Tensor, expected: Tensor) -> float:
    """Return the nats per token that a text loses on average if ``actual`` logits [tokens,
    vocabulary] stand for ``expected`` ones: their Kullback-Leibler divergence."""
    logs, own = actual.log_softmax(-1), expected.log_softmax(-1)
    return float((own.exp() * (own - logs)).sum(-1).mean())
