"""Log probabilities from raw logits: of the chosen tokens, the likeliest and named ones."""

from collections.abc import Iterable
from collections.abc import Sequence as Rows

import numpy as np
import torch
from torch import Tensor

from workers.engine.request import LogprobParams, TokenLogprobs
from workers.engine.sampling.chunks import CHUNK, chunk_sums, in_chunks
from workers.engine.sampling.logprob_record import LogprobRecord
from workers.engine.sampling.single_buffer import SingleBuffer
from workers.engine.sequence import Piece, Sequence

_LOWEST = -9999.0
"""Replaces the logarithm of zero, as in OpenAI's API."""

_ROWS = 64
"""Rows of a prompt to score at a time: their float32 copy stays small."""


class Scorer:
    """Records the log probabilities of a step's tokens for the rows that want them."""

    def __init__(self) -> None:
        self._groups: list[tuple[LogprobParams, list[int], list[LogprobRecord]]] = []
        self._num_rows = 0
        self._kept = SingleBuffer()
        self._single = SingleBuffer()

    def set_rows(self, rows: Rows[Sequence]) -> None:
        """Set the owners of the logits' rows. Rows with equal parameters are scored together, so
        that no row pays for the parameters of another."""
        groups: dict[LogprobParams, list[tuple[int, LogprobRecord]]] = {}
        for row, seq in enumerate(rows):
            if seq.logprobs is not None:
                groups.setdefault(seq.logprobs.params, []).append((row, seq.logprobs))
        self._groups = [
            (params, [row for row, _ in group], [record for _, record in group])
            for params, group in groups.items()
        ]
        self._num_rows = len(rows)

    def keep(self, logits: Tensor) -> Tensor:
        """Return the logits as they are now: a copy if they are float32 and about to change."""
        if self._groups and logits.dtype == torch.float32:
            return self._kept.copy(logits)
        return logits

    def note(self, raw: Tensor, token_ids: Tensor) -> None:
        """Record each row's token under the logits that :meth:`keep` returned."""
        for params, rows, records in self._groups:
            everyone = len(rows) == self._num_rows
            scores = self.score(
                raw if everyone else raw[rows], token_ids if everyone else token_ids[rows], params
            )
            for i, record in enumerate(records):
                record.note(scores.rows(i, i + 1))

    def score_prompts(self, pieces: Iterable[Piece], logits: Tensor) -> None:
        """Record the prompt tokens that follow those of ``pieces``. ``logits``
        [positions, vocabulary] have the same order."""
        row = 0
        for seq, position, size in pieces:
            record = seq.logprobs
            assert record is not None
            assert record.prompt is not None
            tokens = torch.tensor(seq.token_ids[position + 1 : position + 1 + size])
            scores = self.score(logits[row : row + size], tokens, record.params)
            record.prompt.note(position, scores)
            row += size

    def score(self, logits: Tensor, token_ids: Tensor, params: LogprobParams) -> TokenLogprobs:
        """The log probabilities of ``token_ids`` [n] under ``logits`` [n, vocabulary]."""
        token_ids = token_ids.to(logits.device)
        pieces = zip(torch.split(logits, _ROWS), torch.split(token_ids, _ROWS), strict=True)
        return TokenLogprobs.joined(
            [_score(self._single.copy(some), ids, params) for some, ids in pieces]
        )


def _score(logits: Tensor, token_ids: Tensor, params: LogprobParams) -> TokenLogprobs:
    """Score, and overwrite ``logits``."""
    top, top_ids = likeliest(logits, params.top_logprobs_num)
    named = logits[:, list(params.token_ids_logprob)]
    found = torch.cat([logits.gather(1, token_ids[:, None]), top, named], dim=1)
    highest = logits.amax(dim=-1, keepdim=True)
    total = chunk_sums(logits.sub_(highest).exp_()).sum(dim=-1, keepdim=True)
    logprobs = found.sub_(highest + total.log().float()).clamp_(min=_LOWEST).cpu().numpy()
    chosen, top_rows, named_rows = np.split(logprobs, [1, 1 + top.shape[1]], axis=1)
    return TokenLogprobs(chosen[:, 0], top_ids.cpu().numpy(), top_rows, named_rows)


def likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest of each row and their ids [n, count], in descending order, the lower
    id first among equals.

    They lie in the ``count`` chunks with the largest maxima, the first among equals: a token
    outside has a larger one, or an equal one with a lower id, in each of those chunks.
    """
    if not count:
        return logits[:, :0], torch.empty((len(logits), 0), dtype=torch.int64)
    chunked = in_chunks(logits, filler=-torch.inf)
    maxima = chunked.amax(-1)
    columns = torch.arange(max(maxima.shape[1], CHUNK), device=logits.device)
    chunks = _first(maxima, columns[: maxima.shape[1]], min(count, maxima.shape[1]))
    ids = (chunks[:, :, None] * CHUNK + columns[:CHUNK]).flatten(1)
    candidates = chunked.flatten(1).gather(1, ids)
    places = _first(candidates, ids, count)
    return candidates.gather(1, places), ids.gather(1, places)


def _first(values: Tensor, ids: Tensor, count: int) -> Tensor:
    """Columns [n, count] of the largest float32 ``values`` [n, m], the lower id first among
    equals: a value's bits as a number that sorts alike, with the id below them."""
    bits = (values + 0.0).view(torch.int32)  # turns -0 into 0
    ordered = (bits ^ (bits >> 31 & 0x7FFFFFFF)).long()
    return (ordered * 2**32 - ids).topk(count).indices
