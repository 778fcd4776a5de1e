"""The fused kernels as torch operations, for tests of what is fused. They count their calls."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from workers.engine.backends.cuda.fusable import Activation, NormRule, RotationRule
from workers.engine.backends.cuda.kv_cache import TokenMajorLayer


class PlainKernels:
    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def normalize(
        self, x: Tensor, added: Tensor | None, weight: Tensor | None, rule: NormRule, total: Tensor
    ) -> Tensor:
        self.calls["normalize" if added is None else "add and normalize"] += 1
        if added is not None:
            x = torch.add(x, added, out=total)
        return rule.compute(x, weight)

    def gate(self, x: Tensor, up: Tensor, activation: Activation) -> Tensor:
        self.calls["gate"] += 1
        return activation.compute(x, up)

    def rotate(self, *args: Any) -> None:
        self.calls["rotate"] += 1
        self._rotate(*args)

    def _rotate(self, heads: Any, tables: Any, rule: RotationRule, into: Any) -> None:
        for x, result in zip(heads, into, strict=True):
            turned = rule.compute(x.transpose(0, 1), *tables)
            result.copy_(turned.transpose(0, 1))

    def rotate_to_pages(
        self,
        heads: Any,
        tables: Any,
        rule: RotationRule,
        into: Any,
        value: Tensor,
        layer: TokenMajorLayer,
        slots: Tensor,
        *,
        keeps: bool,
    ) -> None:
        self.calls["rotate and store"] += 1
        self._rotate(heads, tables, rule, into)
        layer.write(slots, into[1], value)
        if not keeps:
            into[1].fill_(torch.nan)

    def store(self, key: Tensor, value: Tensor, layer: TokenMajorLayer, slots: Tensor) -> None:
        self.calls["store"] += 1
        layer.write(slots, key, value)
