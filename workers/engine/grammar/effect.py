"""Measures how much of the model's distribution grammar masks remove."""

from collections.abc import Iterable

import numpy as np
from torch import Tensor

from workers.engine.backends.cpu import logits as native_logits
from workers.engine.grammar.mask import GrammarMask

Removal = tuple[float, bool]
"""The probability that a mask took away, and whether the likeliest token was in it."""


def removals(logits: Tensor, mask: GrammarMask, wanted: Iterable[int]) -> dict[int, Removal]:
    """Return the effect of the mask on the wanted rows of logits [rows, vocabulary], before
    temperature and filters. Changes no logits."""
    wanted = frozenset(wanted)
    lines = [line for line, row in enumerate(mask.rows) if row in wanted]
    if not lines:
        return {}
    rows = [mask.rows[line] for line in lines]
    if (measured := native_logits.measure_removed(logits, rows, mask.allowed, lines)) is not None:
        return dict(zip(rows, zip(*measured, strict=True), strict=True))
    if logits.device.type == "cpu":
        return {mask.rows[line]: _removal(logits[mask.rows[line]], mask, line) for line in lines}
    chosen = logits[rows]
    forbidden = mask.forbidden_in(lines)[:, : chosen.shape[1]]
    highest, likeliest = chosen.max(dim=1)
    weights = chosen.sub_(highest[:, None]).exp_()
    removed = weights.mul(forbidden).sum(dim=1) / weights.sum(dim=1)
    overruled = forbidden.gather(1, likeliest[:, None])[:, 0]
    return dict(zip(rows, zip(removed.tolist(), overruled.tolist(), strict=True), strict=True))


def _removal(logits: Tensor, mask: GrammarMask, line: int) -> Removal:
    """Return the effect on one row. One row fits in the cache; torch's operators over all rows at
    once take three times as long."""
    row = logits.numpy()
    likeliest = int(row.argmax())
    weights = np.exp(row - row[likeliest])
    bits = mask.allowed[line].view(np.uint8)
    allowed = np.unpackbits(bits, bitorder="little", count=len(row))
    kept = weights.dot(allowed.astype(np.float32)) / weights.sum()
    return max(0.0, 1.0 - float(kept)), not allowed[likeliest]
