"""Log probabilities from raw logits: of the chosen tokens, the likeliest and named ones."""

from collections.abc import Iterable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from completions.contract.job_request import LogprobParams
from workers.engine.backends.base.transfers import to_device, wait_for
from workers.engine.core.output import TokenLogprobs
from workers.engine.core.sequence import Piece
from workers.engine.sampling.chunks import CHUNK, chunk_sums, split_chunks
from workers.engine.sampling.logits_processors import PlacedRow
from workers.engine.sampling.single_buffer import SingleBuffer

LOWEST = -9999.0
"""Replaces the logarithm of zero, as in OpenAI's API."""

_ROWS = 64
"""Rows of a prompt to score at a time: their float32 copy stays small."""


class Scorer:
    """Computes the log probabilities of a step's tokens for the rows that want them."""

    def __init__(self) -> None:
        self._groups: list[tuple[LogprobParams, list[int]]] = []
        self._num_rows = 0
        self._kept = SingleBuffer()
        self._single = SingleBuffer()

    def set_rows(self, rows: Rows[PlacedRow], num_rows: int) -> None:
        """Set the rows to score, of ``num_rows`` in all. Those with equal parameters are scored
        together, so that no row pays for the parameters of another."""
        groups: dict[LogprobParams, list[int]] = {}
        for row, (seq, _, _) in rows:
            if seq.logprobs is not None:
                groups.setdefault(seq.logprobs.params, []).append(row)
        self._groups = list(groups.items())
        self._num_rows = num_rows

    def keep(self, logits: Tensor) -> Tensor:
        """Return the logits as they are now: a copy if they are float32 and about to change."""
        return self._kept.copy(logits) if logits.dtype == torch.float32 else logits

    def score_rows(self, raw: Tensor, token_ids: Tensor) -> dict[int, TokenLogprobs]:
        """Score each row's token under the logits that :meth:`keep` returned, for the rows whose
        sequence records log probabilities."""
        pending = self.launch_rows(raw, token_ids)
        wait_for(raw.device)
        return pending.wait()

    def launch_rows(self, raw: Tensor, token_ids: Tensor) -> "PendingScores":
        """Return the same without waiting for the device."""
        pending = PendingScores()
        for params, rows in self._groups:
            if len(rows) < self._num_rows:
                (index,) = to_device([np.array(rows)], raw.device)
                some, ids = raw.index_select(0, index), token_ids.index_select(0, index)
            else:
                some, ids = raw, token_ids
            pending.groups.append((rows, self._launch(some, ids, params)))
        return pending

    def score_prompts(self, pieces: Iterable[Piece], logits: Tensor) -> None:
        """Record the prompt tokens that follow those of ``pieces``. ``logits``
        [positions, vocabulary] have the same order."""
        row = 0
        for seq, position, size in pieces:
            record = seq.logprobs
            assert record is not None
            assert record.prompt is not None
            tokens = torch.tensor(seq.token_ids[position + 1 : position + 1 + size])
            scores = self.score(
                logits[row : row + size], tokens, record.params, ranks=record.params.ranks
            )
            record.prompt.note(position, scores)
            row += size

    def score(
        self, logits: Tensor, token_ids: Tensor, params: LogprobParams, ranks: bool = False
    ) -> TokenLogprobs:
        """Return the log probabilities of ``token_ids`` [n] under ``logits`` [n, vocabulary]."""
        token_ids = token_ids.to(logits.device)
        arriving = self._launch(logits, token_ids, params, ranks)
        wait_for(logits.device)
        return _join(arriving)

    def _launch(
        self, logits: Tensor, token_ids: Tensor, params: LogprobParams, ranks: bool = False
    ) -> list["_Arriving"]:
        pieces = zip(torch.split(logits, _ROWS), torch.split(token_ids, _ROWS), strict=True)
        return [_score(self._single.copy(some), ids, params, ranks) for some, ids in pieces]


class _Arriving(NamedTuple):
    """Scores on their way to main memory."""

    logprobs: Tensor
    """[n, 1 + top + named]."""
    top_ids: Tensor
    """[n, top]."""
    ranks: Tensor
    """[n], or empty if they are not wanted."""


@dataclass(frozen=True, slots=True)
class PendingScores:
    """Scores of a step's rows, group by group. They may be read once the device has come past
    what was launched."""

    groups: list[tuple[list[int], list[_Arriving]]] = field(default_factory=list)

    def wait(self) -> dict[int, TokenLogprobs]:
        """Return the scores by row."""
        scored: dict[int, TokenLogprobs] = {}
        for rows, pieces in self.groups:
            scores = _join(pieces)
            scored.update((row, scores.rows(i, i + 1)) for i, row in enumerate(rows))
        return scored


def _join(pieces: list[_Arriving]) -> TokenLogprobs:
    parts = []
    for logprobs, top_ids, ranks in pieces:
        columns = [1, 1 + top_ids.shape[1]]
        chosen, top, named = np.split(logprobs.numpy(), columns, axis=1)
        scores = TokenLogprobs(chosen[:, 0], top_ids.numpy(), top, named, ranks=ranks.numpy())
        parts.append(scores)
    return TokenLogprobs.concatenate(parts)


def _score(logits: Tensor, token_ids: Tensor, params: LogprobParams, ranks: bool) -> _Arriving:
    """Score, and overwrite ``logits``."""
    top, top_ids = likeliest(logits, params.top_logprobs_num)
    (wanted,) = to_device([np.array(params.token_ids_logprob, dtype=np.int64)], logits.device)
    named = logits.index_select(1, wanted)
    scores = torch.cat([logits.gather(1, token_ids[:, None]), top, named], dim=1)
    ranked = (logits >= scores[:, :1]).sum(dim=1) if ranks else token_ids[:0]
    highest = logits.amax(dim=-1, keepdim=True)
    total = chunk_sums(logits.sub_(highest).exp_()).sum(dim=-1, keepdim=True)
    logprobs = scores.sub_(highest + total.log().float()).clamp_(min=LOWEST)
    return _Arriving(*(x.to("cpu", non_blocking=True) for x in (logprobs, top_ids, ranked)))


def likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the ``count`` largest of each row and their ids [n, count], in descending order, the
    lower id first among equals.

    They lie in the ``count`` chunks with the largest maxima, the first among equals: a token
    outside has a larger one, or an equal one with a lower id, in each of those chunks.
    """
    if not count:
        return logits[:, :0], logits.new_empty((len(logits), 0), dtype=torch.int64)
    chunked = split_chunks(logits, filler=-torch.inf)
    columns = torch.arange(chunked.shape[1] * CHUNK, device=logits.device)
    if count >= chunked.shape[1]:  # each chunk may hold one of them
        rows = chunked.flatten(1)
        places = _first(rows, columns, count)
        return rows.gather(1, places), places
    chunks = _first(chunked.amax(-1), columns[: chunked.shape[1]], count)
    ids = (chunks[:, :, None] * CHUNK + columns[:CHUNK]).flatten(1)
    candidates = chunked.flatten(1).gather(1, ids)
    places = _first(candidates, ids, count)
    return candidates.gather(1, places), ids.gather(1, places)


def _first(values: Tensor, ids: Tensor, count: int) -> Tensor:
    """Columns [n, count] of the largest float32 ``values`` [n, m], the lower id first among
    equals: a value's bits as a number that sorts alike, with the id below them."""
    bits = (values + 0.0).view(torch.int32)  # turns -0 into 0
    ordered = (bits >> 31).bitwise_and_(0x7FFFFFFF).bitwise_xor_(bits).long()
    return ordered.mul_(2**32).sub_(ids).topk(count).indices
