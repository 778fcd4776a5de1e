"""Draws a token from each row of weights, after the filters top-k, top-p and min-p."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from workers.engine.sampling.chunks import CHUNK, chunk_sums, split_chunks
from workers.engine.sampling.logprobs import likeliest

_LEVELS = 128
_LEVELS_PER_OCTAVE = 4
"""The resolution of the histogram that bounds a nucleus. A token whose probability is 2**-32 of the
likeliest one, or less, falls into the last level."""

_TINY = torch.finfo(torch.float32).tiny
"""The smallest normal number. Weights below it are indistinguishable from zero."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Per row [n]: ``top_k`` <= 0, ``top_p`` 1 and ``min_p`` 0 are off."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor


class Survivors(NamedTuple):
    """What the filters leave of n rows, in order: the largest weight first, the lower id among
    equals."""

    ids: Tensor
    """[n, width]."""
    weights: Tensor
    """[n, width], float64; 0 for what the filters remove and at the ends of rows."""

    def draw(self, uniform: Tensor) -> Tensor:
        """Draw an id from each row."""
        cumulative = self.weights.cumsum(-1)
        position = _search(cumulative, uniform[:, None] * cumulative[:, -1:])
        return self.ids.gather(1, position).squeeze(1)


def draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """Draw ids [n] by inverting the cumulative sum of unnormalised ``weights`` [n, vocabulary].

    Searches the sums of chunks first, then one chunk: no cumulative sum is as long as a row.
    """
    cumulative = chunk_sums(weights).cumsum(-1)
    target = uniform[:, None] * cumulative[:, -1:]
    chunk = _search(cumulative, target)
    start = torch.where(chunk > 0, cumulative.gather(1, (chunk - 1).clamp(min=0)), 0.0)
    wanted = chunk[:, :, None].expand(-1, 1, CHUNK)
    inner = split_chunks(weights).gather(1, wanted).squeeze(1)
    return (chunk * CHUNK + _search(inner.double().cumsum(-1), target - start)).squeeze(1)


def draw_filtered(weights: Tensor, limits: Filter, uniform: Tensor) -> Tensor:
    """Draw as :func:`draw` does, after top-k, top-p and min-p. Each row's largest weight must be
    1."""
    return find_survivors(weights, limits).draw(uniform)


def find_survivors(weights: Tensor, limits: Filter) -> Survivors:
    """Return what top-k, top-p and min-p leave. Each row's largest weight must be 1.

    Sorts few tokens: those below a bound that follows from the limits cannot survive the filters.
    """
    totals = chunk_sums(weights).sum(-1)
    bound = _lower_bound(weights, limits, totals)
    rows, ids = (weights >= bound[:, None]).nonzero(as_tuple=True)
    candidates = weights[rows, ids]
    nucleus = limits.top_p * totals
    nucleus[limits.top_k > 0] = torch.inf  # top-k leaves few, and top-p counts only those
    close = candidates >= _nucleus_bound(rows, candidates, nucleus)[rows]
    ids, kept = _sort_rows(rows[close], ids[close], candidates[close], len(weights))
    return _filter_sorted(ids, kept, limits, totals)


def draw_ranked(weights: Tensor, limits: Filter, uniform: Tensor, top_k: int) -> Tensor:
    """Draw as :func:`draw_filtered` does, without waiting for the device. ``top_k`` is no
    smaller than the limit of any row, or 0 if a row has none; then whole rows are sorted."""
    if top_k:
        kept, ids = likeliest(weights, min(top_k, weights.shape[1]))
    else:
        kept, ids = weights.sort(dim=-1, descending=True, stable=True)
    kept = kept.double().masked_fill_(kept < _TINY, 0)
    return _filter_sorted(ids, kept, limits, chunk_sums(weights).sum(-1)).draw(uniform)


def draw_from_all(vocab_size: int, rows: int, device: torch.device) -> None:
    """Draw from rows of equal weights, for which sampling takes the most memory."""
    weights = torch.ones(rows, vocab_size, device=device)
    limits = Filter(
        top_k=torch.zeros(rows, dtype=torch.int64, device=device),
        top_p=torch.full((rows,), 0.99, dtype=torch.float64, device=device),
        min_p=torch.zeros(rows, device=device),
    )
    draw_filtered(weights, limits, torch.zeros(rows, dtype=torch.float64, device=device))


def _filter_sorted(ids: Tensor, kept: Tensor, limits: Filter, totals: Tensor) -> Survivors:
    """Apply the filters to ``ids`` with float64 weights ``kept`` [n, width], in order. ``totals``
    [n] are the sums of whole rows. Weights of 0 at a row's end change nothing."""
    off = (limits.top_k <= 0)[:, None]
    place = torch.arange(kept.shape[1], device=kept.device)
    kept = kept.masked_fill((place >= limits.top_k[:, None]) & ~off, 0)
    cumulative = kept.cumsum(-1)
    nucleus = limits.top_p[:, None] * torch.where(off, totals[:, None], cumulative[:, -1:])
    kept = kept.masked_fill(cumulative - kept >= nucleus, 0)
    return Survivors(ids, kept.masked_fill(kept < limits.min_p[:, None], 0))


def _lower_bound(weights: Tensor, limits: Filter, totals: Tensor) -> Tensor:
    """Return a positive weight per row [n] below which no token survives the filters."""
    # All the tokens below (1 - p) / vocabulary together weigh less than 1 - p.
    by_top_p = ((1 - limits.top_p) * totals / weights.shape[1]).float()
    bound = torch.maximum(by_top_p, limits.min_p)
    limited = (limits.top_k > 0).nonzero().flatten()
    if len(limited):
        # At least k tokens reach the k-th largest of the chunks' maxima.
        some = weights if len(limited) == len(weights) else weights[limited]
        highest = split_chunks(some).amax(-1).sort(dim=-1, descending=True).values
        column = limits.top_k[limited] - 1
        by_top_k = highest.gather(1, column.clamp(max=highest.shape[1] - 1)[:, None]).squeeze(1)
        bound[limited] = by_top_k.masked_fill_(column >= highest.shape[1], 0)
    return bound.clamp_(min=_TINY)


def _nucleus_bound(rows: Tensor, weights: Tensor, nucleus: Tensor) -> Tensor:
    """Return a weight per row [n] such that the row's tokens at or above it weigh at least
    ``nucleus`` [n] together. Zero keeps all tokens. Read from a histogram of the weights'
    logarithms."""
    level = (weights.log2() * -_LEVELS_PER_OCTAVE).floor_().clamp_(max=_LEVELS - 1).long()
    mass = torch.bincount(
        rows * _LEVELS + level, weights=weights.double(), minlength=len(nucleus) * _LEVELS
    )
    enough = mass.view(-1, _LEVELS).cumsum(-1) >= nucleus[:, None]
    last = enough.int().argmax(-1)
    # One level of margin, for logarithms that round across a bin edge.
    bound = torch.exp2((last + 2) / -_LEVELS_PER_OCTAVE)
    return bound.masked_fill_(~enough[:, -1] | (last == _LEVELS - 1), 0)


def _sort_rows(rows: Tensor, ids: Tensor, weights: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Sort tokens [m], given in order of row and id, within their rows: the largest weight first,
    among equals the lower id. Returns ids and float64 weights [num_rows, widest], padded with
    weight 0."""
    sizes = torch.bincount(rows, minlength=num_rows)
    columns = torch.arange(len(rows), device=rows.device) - (sizes.cumsum(0) - sizes)[rows]
    padded = weights.new_zeros(num_rows, int(sizes.max()))
    padded_ids = ids.new_zeros(padded.shape)
    padded[rows, columns] = weights
    padded_ids[rows, columns] = ids
    padded, order = torch.sort(padded, dim=-1, descending=True, stable=True)
    return padded_ids.gather(1, order), padded.double()


def _search(cumulative: Tensor, target: Tensor) -> Tensor:
    """Return the first column [n, 1] whose cumulative weight exceeds ``target`` [n, 1].

    Rounding may lift a target to the total. The target stays below it, so that no column of
    weight zero is chosen.
    """
    total = cumulative[:, -1:]
    below_total = torch.nextafter(total, torch.zeros_like(total))
    return torch.searchsorted(cumulative, torch.minimum(target, below_total), right=True)
