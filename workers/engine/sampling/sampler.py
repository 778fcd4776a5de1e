"""Chooses a token for each row of logits, vectorised, with each row's own parameters."""

from collections.abc import Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from workers.engine.cpu import logits as native_logits
from workers.engine.exceptions import EngineError
from workers.engine.grammar.mask import GrammarMask
from workers.engine.sampling import philox
from workers.engine.sampling.chunks import CHUNK, chunk_sums, in_chunks
from workers.engine.sampling.custom_processors import CustomProcessors
from workers.engine.sampling.dry import Dry
from workers.engine.sampling.logits_processors import (
    LogitBias,
    LogitsProcessor,
    MinTokens,
    Penalties,
)
from workers.engine.sampling.logprobs import Scorer
from workers.engine.sampling.single_buffer import SingleBuffer
from workers.engine.sequence import Sequence

_LEVELS = 128
_LEVELS_PER_OCTAVE = 4
"""The resolution of the histogram that bounds a nucleus. A token whose probability is 2**-32 of the
likeliest one, or less, falls into the last level."""

_TINY = torch.finfo(torch.float32).tiny
"""The smallest normal number. Weights below it are indistinguishable from zero."""


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """One token for each row of a step."""

    token_ids: list[int]
    """Meaningless for the rows in ``invalid`` and ``faults``."""
    invalid: list[int]
    """Rows whose logits were not finite."""
    faults: Mapping[int, EngineError]
    """Rows whose own request failed."""


class Sampler:
    """Changes logits and chooses tokens, in this order:

    1. DRY, frequency and presence penalties, repetition penalty, logit bias, the custom processor,
       ``min_tokens``, the grammar mask;
    2. for a greedy row, the likeliest token, the lower id among equals;
    3. for any other row, temperature, top-k, top-p over what top-k left, min-p (which keeps
       p >= min_p * p_max), and a draw.

    A row's draw depends on its logits and on (seed, prompt, choice, position) alone: every
    reduction runs along the row, in an order that the number of rows does not change.
    """

    def __init__(self) -> None:
        self._custom = CustomProcessors()
        self._min_tokens = MinTokens()
        self._processors: list[LogitsProcessor] = [
            Dry(), Penalties(), LogitBias(), self._custom, self._min_tokens
        ]  # fmt: skip
        self.scorer = Scorer()
        self._rows: list[Sequence] = []
        self._plain = True
        self._draw: _Draw | None = None
        self._single = SingleBuffer()

    def sample(
        self, logits: Tensor, rows: list[Sequence], mask: GrammarMask | None = None
    ) -> SamplerOutput:
        """Choose a token for each of ``rows`` from ``logits`` [rows, vocabulary].

        Overwrites the logits. Records the token's log probability for rows that want it.
        """
        if rows != self._rows:
            self._set_rows(rows, logits.device)
        raw = self.scorer.keep(logits)
        if logits.dtype != torch.float32:
            logits = self._single.copy(logits)
        for processor in self._processors:
            processor.apply(logits)
        highest, token_ids = _choose(logits, mask)
        unusable = (~highest.isfinite()).nonzero().flatten().tolist()
        if unusable:
            self._custom.blame(highest)
        for row in unusable:
            logits[row], highest[row] = 0, 0
        faults = self._custom.faults
        if self._draw is not None:
            self._draw.fill(token_ids, logits, highest)
        self.scorer.note(raw, token_ids)
        invalid = [row for row in unusable if row not in faults]
        return SamplerOutput(token_ids.tolist(), invalid, faults)

    def is_plain(self, rows: list[Sequence], device: torch.device) -> bool:
        """Whether :meth:`launch` can choose the tokens of ``rows``: no row filters, scores or
        changes logits by its earlier tokens."""
        if rows != self._rows:
            self._set_rows(rows, device)
        return self._plain

    def launch(self, logits: Tensor, rows: list[Sequence]) -> tuple[Tensor, Tensor]:
        """Sample plain rows on the device of ``logits``, without waiting for the device.

        The rows may be ``num_in_flight`` tokens ahead of what is known here. Returns the tokens
        [rows], and whether each row's logits were finite [rows].
        """
        assert self.is_plain(rows, logits.device)
        if logits.dtype != torch.float32:
            logits = self._single.copy(logits)
        self._min_tokens.apply(logits)
        highest, token_ids = _choose(logits, None)
        finite = highest.isfinite()
        if self._draw is not None:
            logits.masked_fill_(~finite[:, None], 0)
            highest.masked_fill_(~finite, 0)
            self._draw.fill(token_ids, logits, highest)
        return token_ids, finite

    def _set_rows(self, rows: list[Sequence], device: torch.device) -> None:
        self._rows = list(rows)
        self._plain = all(map(_is_plain, rows))
        for processor in self._processors:
            processor.set_rows(rows)
        self.scorer.set_rows(rows)
        drawn = [(row, seq) for row, seq in enumerate(rows) if not seq.sampling.greedy]
        self._draw = _Draw(drawn, len(rows), device) if drawn else None


def _is_plain(seq: Sequence) -> bool:
    params = seq.sampling
    return (
        seq.choice.grammar is None
        and seq.logprobs is None
        and seq.record is None
        and seq.processor is None
        and not params.logit_bias
        and not params.penalizes
        and params.dry_multiplier == 0
        and (params.greedy or not params.filters)
    )


_NO_BITS = np.empty((0, 0), dtype=np.int32)


def _choose(logits: Tensor, mask: GrammarMask | None) -> tuple[Tensor, Tensor]:
    """Apply ``mask`` in place. Return each row's highest logit, NaN if the row holds one, and the
    first token that has it."""
    rows, allowed = (mask.rows, mask.allowed) if mask is not None else ([], _NO_BITS)
    if (chosen := native_logits.choose(logits, rows, allowed)) is not None:
        return chosen
    if mask is not None:
        mask.apply(logits)
    return logits.amax(dim=-1), logits.argmax(dim=-1)


def _ranks(top_k: int) -> int:
    """``top_k`` within int64: a request may name any number, and no vocabulary has 2**31 tokens."""
    return min(max(top_k, 0), 2**31)


class _Draw:
    """The parameters of the rows that draw, as tensors on the device of the logits."""

    def __init__(
        self, drawn: Rows[tuple[int, Sequence]], num_rows: int, device: torch.device
    ) -> None:
        self._sequences = [seq for _, seq in drawn]
        self._device = device
        params = [seq.sampling for seq in self._sequences]
        rows = torch.tensor([row for row, _ in drawn])
        self._rows = rows.to(device) if len(drawn) < num_rows else None
        self._temperature = torch.tensor([p.temperature for p in params])[:, None].to(device)
        self._key = philox.stream_keys([p.seed for p in params])
        self._choice = np.array([s.choice_index for s in self._sequences], dtype=np.uint32)
        self._prompt = np.array([s.prompt_index for s in self._sequences], dtype=np.uint32)
        filtered = [p.filters for p in params]
        self._filtered = torch.from_numpy(np.flatnonzero(filtered)).to(device)
        self._free = torch.from_numpy(np.flatnonzero(np.logical_not(filtered))).to(device)
        kept = [p for p, f in zip(params, filtered, strict=True) if f]
        self._filter = Filter(
            top_k=torch.tensor([_ranks(p.top_k) for p in kept], dtype=torch.int64).to(device),
            top_p=torch.tensor([p.top_p for p in kept], dtype=torch.float64).to(device),
            min_p=torch.tensor([p.min_p for p in kept], dtype=torch.float32).to(device),
        )

    def fill(self, token_ids: Tensor, logits: Tensor, highest: Tensor) -> None:
        """Set ``token_ids`` [rows] of the rows that draw; ``logits`` are overwritten."""
        rows = self._rows
        if rows is not None:
            logits, highest = logits[rows], highest[rows]
        weights = logits.sub_(highest[:, None]).div_(self._temperature).exp_()
        uniform = self._uniform()
        if not len(self._filtered):
            drawn = draw(weights, uniform)
        elif not len(self._free):
            drawn = draw_filtered(weights, self._filter, uniform)
        else:
            drawn = torch.empty(len(weights), dtype=torch.int64, device=self._device)
            drawn[self._free] = draw(weights[self._free], uniform[self._free])
            drawn[self._filtered] = draw_filtered(
                weights[self._filtered], self._filter, uniform[self._filtered]
            )
        if rows is None:
            token_ids.copy_(drawn)
        else:
            token_ids[rows] = drawn

    def _uniform(self) -> Tensor:
        position = np.array([s.next_output for s in self._sequences], dtype=np.uint32)
        drawn = philox.uniform(self._key, position, self._choice, self._prompt)
        return torch.from_numpy(drawn).to(self._device)


@dataclass(frozen=True, slots=True)
class Filter:
    """Per row [n]: ``top_k`` <= 0, ``top_p`` 1 and ``min_p`` 0 are off."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor


def draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """Ids [n] by inversion of the cumulative sum of unnormalised ``weights`` [n, vocabulary].

    Two levels, so that only sums of chunks are accumulated over the whole row.
    """
    cumulative = chunk_sums(weights).cumsum(-1)
    target = uniform[:, None] * cumulative[:, -1:]
    chunk = _search(cumulative, target)
    start = torch.where(chunk > 0, cumulative.gather(1, (chunk - 1).clamp(min=0)), 0.0)
    wanted = chunk[:, :, None].expand(-1, 1, CHUNK)
    inner = in_chunks(weights).gather(1, wanted).squeeze(1)
    return (chunk * CHUNK + _search(inner.double().cumsum(-1), target - start)).squeeze(1)


def draw_filtered(weights: Tensor, limits: Filter, uniform: Tensor) -> Tensor:
    """Draw as :func:`draw` does, after top-k, top-p and min-p. Each row's largest weight must be 1.

    Sorts only tokens that can survive: a lower bound on the weight follows from the parameters,
    leaves few tokens, and never drops one that the filters would keep.
    """
    totals = chunk_sums(weights).sum(-1)
    bound = _lower_bound(weights, limits, totals)
    rows, ids = (weights >= bound[:, None]).nonzero(as_tuple=True)
    found = weights[rows, ids]
    nucleus = limits.top_p * totals
    nucleus[limits.top_k > 0] = torch.inf  # top-k leaves few, and top-p counts only those
    close = found >= _nucleus_bound(rows, found, nucleus)[rows]
    ids, kept = _sorted_rows(rows[close], ids[close], found[close], len(weights))
    off = limits.top_k <= 0
    place = torch.arange(kept.shape[1], device=kept.device)
    kept[(place >= limits.top_k[:, None]) & ~off[:, None]] = 0
    before = kept.cumsum(-1) - kept
    kept[before >= (limits.top_p * torch.where(off, totals, kept.sum(-1)))[:, None]] = 0
    kept[kept < limits.min_p[:, None]] = 0
    cumulative = kept.cumsum(-1)
    position = _search(cumulative, uniform[:, None] * cumulative[:, -1:])
    return ids.gather(1, position).squeeze(1)


def _lower_bound(weights: Tensor, limits: Filter, totals: Tensor) -> Tensor:
    """A positive weight per row [n] below which no token survives the filters."""
    # All the tokens below (1 - p) / vocabulary together weigh less than 1 - p.
    by_top_p = ((1 - limits.top_p) * totals / weights.shape[1]).float()
    bound = torch.maximum(by_top_p, limits.min_p)
    limited = (limits.top_k > 0).nonzero().flatten()
    if len(limited):
        # At least k tokens reach the k-th largest of the chunks' maxima.
        some = weights if len(limited) == len(weights) else weights[limited]
        highest = in_chunks(some).amax(-1).sort(dim=-1, descending=True).values
        column = limits.top_k[limited] - 1
        by_top_k = highest.gather(1, column.clamp(max=highest.shape[1] - 1)[:, None]).squeeze(1)
        bound[limited] = by_top_k.masked_fill_(column >= highest.shape[1], 0)
    return bound.clamp_(min=_TINY)


def _nucleus_bound(rows: Tensor, weights: Tensor, nucleus: Tensor) -> Tensor:
    """A weight per row [n] such that the tokens [m] at or above it weigh at least ``nucleus``
    [n], or zero: from a histogram over the binary logarithm of the weights."""
    level = (weights.log2() * -_LEVELS_PER_OCTAVE).floor_().clamp_(max=_LEVELS - 1).long()
    mass = torch.bincount(
        rows * _LEVELS + level, weights=weights.double(), minlength=len(nucleus) * _LEVELS
    )
    enough = mass.view(-1, _LEVELS).cumsum(-1) >= nucleus[:, None]
    last = enough.int().argmax(-1)
    # One level of margin, for logarithms that round across an edge.
    bound = torch.exp2((last + 2) / -_LEVELS_PER_OCTAVE)
    return bound.masked_fill_(~enough[:, -1] | (last == _LEVELS - 1), 0)


def _sorted_rows(
    rows: Tensor, ids: Tensor, weights: Tensor, num_rows: int
) -> tuple[Tensor, Tensor]:
    """Ids and float64 weights [num_rows, widest] of tokens [m] in order of row and id: largest
    first, the lower id first among equals, padded with weight 0."""
    sizes = torch.bincount(rows, minlength=num_rows)
    columns = torch.arange(len(rows), device=rows.device) - (sizes.cumsum(0) - sizes)[rows]
    padded = weights.new_zeros(num_rows, int(sizes.max()))
    padded_ids = ids.new_zeros(padded.shape)
    padded[rows, columns] = weights
    padded_ids[rows, columns] = ids
    padded, order = torch.sort(padded, dim=-1, descending=True, stable=True)
    return padded_ids.gather(1, order), padded.double()


def _search(cumulative: Tensor, target: Tensor) -> Tensor:
    """The first column [n, 1] whose cumulative weight exceeds ``target`` [n, 1].

    Rounding may lift a target to the total. The target stays below it, so that no column of
    weight zero is chosen.
    """
    total = cumulative[:, -1:]
    below_total = torch.nextafter(total, torch.zeros_like(total))
    return torch.searchsorted(cumulative, torch.minimum(target, below_total), right=True)
