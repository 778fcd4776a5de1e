"""The distributions that tokens are drawn from, for requests that ask what they were."""

import math
from collections.abc import Sequence as Rows
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from completions.contract.job_request import LogprobParams
from workers.engine.core.output import Support, TokenLogprobs
from workers.engine.sampling.chunks import chunk_sums
from workers.engine.sampling.filters import Survivors
from workers.engine.sampling.logits_processors import PlacedRow
from workers.engine.sampling.logprobs import LOWEST, likeliest

_TINY = torch.finfo(torch.float32).tiny
"""Stands for the weight of a token that a ban had removed."""


class Drawn(NamedTuple):
    """What one row's token was drawn from."""

    weights: Tensor
    """[vocabulary], before the filters; the largest is 1, those of forbidden tokens are 0."""
    survivors: Survivors | None
    """What the filters left, as one row; None if the row has no filter."""

    def keep_only(self, token_id: int) -> "Drawn":
        """Return the same if nothing but one token could be chosen."""
        ids = torch.tensor([[token_id]], device=self.weights.device)
        return Drawn(self.weights, Survivors(ids, self.weights[ids].double().clamp_(min=_TINY)))


class Distributions:
    """Scores the tokens of rows whose request asks for processed log probabilities or for the
    support of each draw. At temperature 0, all probability is on the likeliest token."""

    def __init__(self, rows: Rows[PlacedRow], device: torch.device) -> None:
        """``rows`` are those to score, of all that record log probabilities."""
        self._rows = [
            (row, seq.logprobs.params) for row, (seq, _, _) in rows if seq.logprobs is not None
        ]
        sampling = [seq.sampling for _, (seq, _, _) in rows]
        temperatures = [1.0 if each.greedy else each.temperature for each in sampling]
        self._temperatures = torch.tensor(temperatures, dtype=torch.float32, device=device)[:, None]

    @property
    def rows(self) -> list[int]:
        return [row for row, _ in self._rows]

    def sum_all(self, logits: Tensor) -> Rows[float]:
        """Return the logarithm of each wanted row's sum of weights before any token is forbidden or
        filtered away, at the row's temperature."""
        scaled = logits[self.rows] / self._temperatures
        sums: list[float] = torch.logsumexp(scaled.double(), dim=-1).tolist()
        return sums

    def score(
        self,
        drawn: dict[int, Drawn],
        logits: Tensor,
        highest: Tensor,
        token_ids: Tensor,
        sums: Rows[float],
    ) -> dict[int, TokenLogprobs]:
        """Score the wanted rows. ``drawn`` has the rows that drew; of all others, ``logits`` are as
        they were chosen from. ``sums`` are of :meth:`sum_all`."""
        scored = {}
        each = zip(self._rows, self._temperatures[:, 0].tolist(), sums, strict=True)
        for (row, params), temperature, total in each:
            token_id = int(token_ids[row])
            if row in drawn:
                logprobs, support = _score_draw(drawn[row], token_id, params)
                best = float(highest[row])
            else:
                logprobs, support = _score_certain(logits[row], token_id, params)
                best = max(LOWEST, float(logits[row, token_id]))
            mass = support.log_mass + best / temperature - total
            logprobs.support = [support._replace(log_mass=min(0.0, mass))]
            scored[row] = logprobs
        return scored


def _score_draw(
    drawn: Drawn, token_id: int, params: LogprobParams
) -> tuple[TokenLogprobs, Support]:
    """Score one row. The log mass of the support is relative to a weight of 1."""
    weights, survivors = drawn
    num_listed = params.support_ids or 0
    count = min(max(params.top_logprobs_num, num_listed), len(weights))
    _, best_ids = likeliest(weights[None], count)
    if survivors is None:
        total = float(chunk_sums(weights[None]).sum())
        size = int((weights > 0).sum())
        kept = torch.ones_like(weights, dtype=torch.bool)
    else:
        ids = survivors.ids[0][survivors.weights[0] > 0]
        total, size = float(survivors.weights.sum()), len(ids)
        kept = torch.zeros_like(weights, dtype=torch.bool)
        kept[ids] = True
    named = weights.new_tensor(params.token_ids_logprob, dtype=torch.int64)
    asked = torch.cat([weights.new_tensor([token_id], dtype=torch.int64), best_ids[0], named])
    logs = (weights[asked].double() / total).log().masked_fill_(~kept[asked], LOWEST)
    values = logs.clamp_(min=LOWEST).float().cpu().numpy()
    listed = best_ids[0][: min(num_listed, size)]
    if (
        survivors is not None and not kept[listed].all()
    ):  # where a ban is overruled, what is kept has no weight here
        order = survivors.weights[0].argsort(descending=True, stable=True)
        listed = survivors.ids[0][order][: min(num_listed, size)]
    return _pack(values, best_ids[0], params), Support(size, math.log(total), listed.tolist())


def _score_certain(
    logits: Tensor, token_id: int, params: LogprobParams
) -> tuple[TokenLogprobs, Support]:
    """Score a row whose token is the likeliest one."""
    _, best_ids = likeliest(logits[None], min(params.top_logprobs_num, len(logits)))
    asked = np.array([token_id, *best_ids[0].tolist(), *params.token_ids_logprob])
    values = np.where(asked == token_id, np.float32(0), np.float32(LOWEST))
    listed = [token_id] if params.support_ids else []
    return _pack(values, best_ids[0], params), Support(1, 0.0, listed)


def _pack(values: NDArray[np.float32], ids: Tensor, params: LogprobParams) -> TokenLogprobs:
    """Return one row: the values of the token, of at least the likeliest ``ids``, of named ids."""
    top, listed = params.top_logprobs_num, len(ids)
    return TokenLogprobs(
        values[:1],
        ids[:top].cpu().numpy()[None],
        values[1 : 1 + top][None],
        values[1 + listed :][None],
    )
