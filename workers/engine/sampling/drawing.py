"""Draws tokens from the weights of the rows that sample, each with its own seed and filter."""

from collections.abc import Sequence as Rows

import numpy as np
import torch
from torch import Tensor

from workers.engine.backends.base.transfers import floats_to_device, to_device
from workers.engine.core.step import Row
from workers.engine.sampling import philox
from workers.engine.sampling.distributions import Drawn
from workers.engine.sampling.filters import (
    Filter,
    Survivors,
    draw,
    draw_ranked,
    find_survivors,
)

_MOST_RANKED = 1024
"""How many tokens of a row are selected by chunk maxima. Without waiting for the device, the host
cannot know how many survive the filters; a row that needs more is sorted."""


def _ranks(top_k: int) -> int:
    """``top_k`` within int64: a request may name any number, and no vocabulary has 2**31 tokens."""
    return min(max(top_k, 0), 2**31)


class Drawing:
    """The parameters of the rows that draw, as tensors on the device of the logits."""

    def __init__(self, drawn: Rows[tuple[int, Row]], num_rows: int, device: torch.device) -> None:
        self._sequences = [row.sequence for _, row in drawn]
        self._places = {row: place for place, (row, _) in enumerate(drawn)}
        self._weights: Tensor | None = None
        self._survivors: Survivors | None = None
        self._num_drafted = np.array([row.num_drafted for _, row in drawn], dtype=np.uint32)
        self._device = device
        params = [seq.sampling for seq in self._sequences]
        filtered = np.array([p.filters for p in params])
        kept = [p for p in params if p.filters]
        top_k = [_ranks(p.top_k) for p in kept]
        self._top_k = max(top_k) if kept and min(top_k) > 0 else 0
        """The largest of the filtered rows' limits; 0 if one of them has none."""
        self.num_sorted = len(kept) if self._top_k == 0 or self._top_k > _MOST_RANKED else 0
        """Rows that a draw without waiting must sort."""
        self._filtered_places = {
            place: i for i, place in enumerate(np.flatnonzero(filtered).tolist())
        }
        rows, chosen, free, ranks = to_device(
            [
                np.array([row for row, _ in drawn]),
                np.flatnonzero(filtered),
                np.flatnonzero(~filtered),
                np.array(top_k, dtype=np.int64),
            ],
            device,
        )
        numbers = [p.temperature for p in params], [p.top_p for p in kept], [p.min_p for p in kept]
        moved = floats_to_device(np.concatenate(numbers), device)
        temperature, top_p, min_p = torch.split(moved, [len(part) for part in numbers])
        self._rows = rows if len(drawn) < num_rows else None
        self._filtered, self._free = chosen, free
        self._temperature = temperature.float()[:, None]
        self._filter = Filter(top_k=ranks, top_p=top_p, min_p=min_p.float())
        self._key = philox.stream_keys([p.seed for p in params])
        self._choice = np.array([s.origin.choice_index for s in self._sequences], dtype=np.uint32)
        self._prompt = np.array([s.origin.prompt_index for s in self._sequences], dtype=np.uint32)

    def fill(self, token_ids: Tensor, logits: Tensor, highest: Tensor, waits: bool = True) -> None:
        """Set ``token_ids`` [rows] of the rows that draw; ``logits`` are overwritten. Without
        ``waits``, it only launches."""
        rows = self._rows
        if rows is not None:
            logits, highest = logits[rows], highest[rows]
        weights = logits.sub_(highest[:, None]).div_(self._temperature).exp_()
        self._weights = weights
        uniform = self._uniform()
        if not len(self._filtered):
            drawn = draw(weights, uniform)
        elif not len(self._free):
            drawn = self._draw_filtered(weights, uniform, waits)
        else:
            drawn = torch.empty(len(weights), dtype=torch.int64, device=self._device)
            drawn[self._free] = draw(weights[self._free], uniform[self._free])
            drawn[self._filtered] = self._draw_filtered(
                weights[self._filtered], uniform[self._filtered], waits
            )
        if rows is None:
            token_ids.copy_(drawn)
        else:
            token_ids[rows] = drawn

    def list_drawn(self, rows: Rows[int]) -> dict[int, Drawn]:
        """Return what those of ``rows`` that draw were last drawn from."""
        assert self._weights is not None
        listed = {}
        for row in rows:
            if (place := self._places.get(row)) is None:
                continue
            survivors = None
            if (at := self._filtered_places.get(place)) is not None:
                assert self._survivors is not None
                survivors = Survivors(*(each[at : at + 1] for each in self._survivors))
            listed[row] = Drawn(self._weights[place], survivors)
        return listed

    def _draw_filtered(self, weights: Tensor, uniform: Tensor, waits: bool) -> Tensor:
        if waits:
            self._survivors = find_survivors(weights, self._filter)
            return self._survivors.draw(uniform)
        most = self._top_k if self._top_k <= _MOST_RANKED else 0
        return draw_ranked(weights, self._filter, uniform, most)

    def _uniform(self) -> Tensor:
        position = np.array([s.next_output for s in self._sequences], dtype=np.uint32)
        position += self._num_drafted
        drawn = philox.uniform(self._key, position, self._choice, self._prompt)
        return floats_to_device(drawn, self._device)
