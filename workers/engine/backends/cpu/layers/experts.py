"""Experts of a mixture, whose weights are packed for the C kernels, and the routers before them."""

import inspect
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from workers.engine.backends.cpu.layers.activations import (
    CLAMPED_SWIGLU,
    activate,
    activate_alone,
    recognise_activation,
)
from workers.engine.backends.cpu.layers.linear import TiledLinear

_ALPHA = 1.702
_TRIED_TOKENS = 6
_TRIED_CHOICES = 128
_SCALES = ("routed_scaling_factor", "router_scaling_factor")
_AGREEING = 0.9
"""Rounding may change the choice for other rows."""
_ALLOWED = {16: 0.05, 8: 0.1, 4: 0.3}
"""The largest error of packed experts against the original ones, by the bits of a weight."""


class PackedExperts(nn.Module):
    """The experts of one layer, in place of transformers' experts that share one parameter: MLPs,
    each of which is two packed layers. The first has the gate too, unless there is none."""

    def __init__(self, experts: Any, kind: type[TiledLinear]) -> None:
        super().__init__()
        self.act_fn = getattr(experts, "act_fn", None)
        self.limit = float(getattr(experts, "limit", 0))
        self.activation = _activation(experts)
        self.has_gate = hasattr(experts, "gate_up_proj")
        both = (experts.gate_up_proj if self.has_gate else experts.up_proj).detach()
        down = experts.down_proj.detach()
        both_bias = getattr(experts, "gate_up_proj_bias", None)
        down_bias = getattr(experts, "down_proj_bias", None)
        if self.takes_scaled or getattr(experts, "is_transposed", False):
            both, down = both.transpose(1, 2), down.transpose(1, 2)
        self.num_experts = len(both)
        ups, downs = [], []
        for i in range(self.num_experts):
            weight, bias = both[i], None if both_bias is None else both_bias[i].detach()
            if self.has_gate and not (self.takes_scaled or experts.is_concatenated):
                weight = torch.cat([weight[::2], weight[1::2]])
                bias = None if bias is None else torch.cat([bias[::2], bias[1::2]])
            ups.append(_pack(kind, weight, bias))
            bias = None if down_bias is None else down_bias[i].detach()
            downs.append(_pack(kind, down[i], bias))
        self.hidden_size, self.bits = ups[0].in_features, ups[0].bits
        self.up, self.down = nn.ModuleList(ups), nn.ModuleList(downs)

    @property
    def takes_scaled(self) -> bool:
        """Whether it takes rows that are scaled for each expert, as :class:`PackedScaledExperts`
        does."""
        return False

    @classmethod
    @torch.inference_mode()
    def pack(cls, experts: nn.Module, kind: type[TiledLinear]) -> Self | None:
        """None for a module that does not have that form, has a shape without kernels, or whose
        output differs from the packed experts' output."""
        if not _are_experts(experts) or _activation(experts) is None:
            return None
        try:
            packed = cls(experts, kind)
        except _NoKernelsError:
            return None
        draw = torch.Generator().manual_seed(5)
        rows = torch.randn(_TRIED_TOKENS, packed.hidden_size, generator=draw).to(torch.bfloat16)
        given = packed.draw_inputs(rows, draw)
        try:
            expected = experts(*given).float()
        except Exception:  # noqa: BLE001 - it takes something else
            return None
        error = (packed(*given).float() - expected).norm()
        return packed if error <= _ALLOWED[packed.bits] * expected.norm() else None

    def draw_inputs(self, rows: Tensor, draw: torch.Generator) -> tuple[Tensor, ...]:
        """Return inputs of a forward by which it is compared with the original one."""
        ids = torch.tensor([[0, self.num_experts - 1]] * len(rows))
        return rows, ids, torch.rand(ids.shape, generator=draw).to(torch.bfloat16)

    def forward(self, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """``hidden`` [tokens, hidden] through the experts ``chosen`` [tokens, n], weighted by
        ``weights`` [tokens, n]."""
        output = torch.zeros_like(hidden)
        for expert in sorted(set(chosen.flatten().tolist())):
            tokens, ranks = torch.where(chosen == expert)
            result = self.compute(expert, hidden[tokens])
            share = weights[tokens, ranks, None].to(result.dtype)
            output.index_add_(0, tokens, (result * share).to(output.dtype))
        return output

    def compute(self, expert: int, rows: Tensor) -> Tensor:
        """Return one expert's output for ``rows`` [tokens, hidden]."""
        assert self.activation is not None
        up = self.up[expert](rows)
        if self.has_gate:
            activated = activate(self.activation, self.limit, *up.chunk(2, dim=-1))
        else:
            activated = activate_alone(self.activation, up)
        output: Tensor = self.down[expert](activated)
        return output


class PackedScaledExperts(PackedExperts):
    """Experts whose input has all rows for each of them, times the row's weight there (Llama 4): 0
    if the row does not choose the expert."""

    @property
    def takes_scaled(self) -> bool:
        return True

    def draw_inputs(self, rows: Tensor, draw: torch.Generator) -> tuple[Tensor, ...]:
        return (rows.repeat(self.num_experts, 1),)

    def forward(self, scaled: Tensor) -> Tensor:  # type: ignore[override]
        """``scaled`` [experts * tokens, hidden], those of an expert one after the other, to the
        same shape. A row of zeros stays one."""
        rows = scaled.view(self.num_experts, -1, self.hidden_size)
        output = torch.zeros_like(rows)
        for expert, own in enumerate(rows):
            chosen = own.any(1).nonzero()[:, 0]
            if len(chosen):
                output[expert, chosen] = self.compute(expert, own[chosen]).to(output.dtype)
        return output.view_as(scaled)


class _NoKernelsError(Exception):
    """A shape is not computed in C."""


def _are_experts(module: Any) -> bool:
    parameters = {name: p.dim() for name, p in module.named_parameters(recurse=False)}
    if parameters == {"up_proj": 3, "down_proj": 3}:
        return bool(module.up_proj.dtype == torch.bfloat16)
    biases = {"gate_up_proj_bias": 2, "down_proj_bias": 2}
    return (
        {k: v for k, v in parameters.items() if k not in biases}
        == {"gate_up_proj": 3, "down_proj": 3}
        and all(parameters.get(name, dim) == dim for name, dim in biases.items())
        and module.gate_up_proj.dtype == torch.bfloat16
        and (bool(getattr(module, "has_gate", False)) or takes_scaled(module))
        and not getattr(module, "has_post_expert_norm", False)
    )


def takes_scaled(experts: nn.Module) -> bool:
    """Return whether experts take rows alone, which are scaled for each of them."""
    return list(inspect.signature(experts.forward).parameters) == ["hidden_states"]


def _activation(experts: Any) -> int | None:
    if getattr(experts, "alpha", None) == _ALPHA and hasattr(experts, "limit"):
        return CLAMPED_SWIGLU
    return recognise_activation(getattr(experts, "act_fn", None))


def _pack(kind: type[TiledLinear], weight: Tensor, bias: Tensor | None) -> TiledLinear:
    outputs, inputs = weight.shape
    linear = nn.Linear(inputs, outputs, bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    packed = kind.pack(linear)
    if packed is None:
        raise _NoKernelsError
    return packed


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of experts, of which a row chooses among those of ``kept``: the ones whose ``best``
    best scores have the highest sums."""

    count: int = 1
    kept: int = 1
    best: int = 1

    @classmethod
    def candidates(cls, router: Any, experts: int, chosen: int) -> list[Self]:
        """Return what a router with these attributes may do; no groups come first."""
        count = getattr(router, "num_group", None) or getattr(router, "n_group", None) or 1
        kept = getattr(router, "topk_group", None) or 1
        groups = [cls()]
        if count > 1 and experts % count == 0 and kept * (experts // count) >= chosen:
            groups += [cls(count, kept, best) for best in (1, 2)]
        return groups

    def leave(self, scores: Tensor) -> Tensor:
        """``scores`` [tokens, experts], those of groups that are not kept below all others."""
        if self.count == 1:
            return scores
        grouped = scores.view(len(scores), self.count, -1)
        sums = grouped.topk(min(self.best, grouped.shape[2])).values.sum(2)
        is_left = torch.ones_like(sums, dtype=torch.bool)
        is_left.scatter_(1, sums.topk(self.kept).indices, False)
        return grouped.masked_fill(is_left[..., None], -torch.inf).flatten(1)


@dataclass(frozen=True, slots=True)
class RouterParts:
    """How experts are chosen, as kernels/model.h describes it."""

    weight: Tensor
    bias: Tensor | None
    correction: Tensor | None
    chosen: int
    sigmoid: bool
    normalizes: bool
    scale: float
    groups: Groups
    factors: Tensor | None = None
    """[experts]: by which the weight of each expert is multiplied."""
    scales_inputs: bool = False
    """Whether weights are of the experts' inputs; experts are then chosen by logits."""

    @classmethod
    @torch.inference_mode()
    def read(cls, router: Any, given: Tensor | None = None) -> Self | None:
        """Return the output of ``router`` as (logits, weights, ids); None if its form is unknown.
        ``given`` is the correction of scores, if the router takes it with the rows."""
        has_factors = hasattr(router, "per_expert_scale")
        linear = router.proj if has_factors else getattr(router, "wg", router)
        weight = getattr(linear, "weight", None)
        chosen = router.config.top_k_experts if has_factors else getattr(router, "top_k", None)
        if weight is None or weight.dim() != 2 or chosen is None:
            return None
        factors = router.per_expert_scale.detach().float() if has_factors else None
        bias, correction = (_get_tensor(router, x) for x in ("bias", "e_score_correction_bias"))
        correction = correction if given is None else given.detach().float()
        scales = (getattr(router, name, None) for name in _SCALES)
        scale = float(next((x for x in scales if x is not None), 1.0))
        draw = torch.Generator().manual_seed(6)
        rows = torch.randn(_TRIED_TOKENS, weight.shape[1], generator=draw).to(weight.dtype)
        try:
            answers = router(rows) if given is None else router(rows, given)
            scales_inputs = len(answers) == 2  # (weights of all experts, logits)
            if scales_inputs:
                scores, ids = answers[0].topk(chosen)
            else:
                _, scores, ids = answers
        except Exception:  # noqa: BLE001 - it answers something else
            return None
        if scores.shape != ids.shape or scores.shape[1] != chosen:
            return None
        if has_factors:
            rows = router.norm(rows) * router.scale * router.scalar_root_size
        common = weight.detach(), bias, correction, chosen
        for sigmoid in (False, True):
            for normalizes in (True, False):
                parts = cls(*common, sigmoid, normalizes, scale, Groups(), factors, scales_inputs)
                if torch.allclose(parts.weights(rows, ids), scores.float(), rtol=0.03, atol=1e-3):
                    is_known = not scales_inputs or (sigmoid and not normalizes and scale == 1)
                    return parts._match_groups(router) if is_known else None
        return None

    def _match_groups(self, router: Any) -> Self | None:
        """Return the same with the groups by which ``router`` chooses; None if they are unknown."""
        first, *others = Groups.candidates(router, len(self.weight), self.chosen)
        if not others:
            return self
        draw = torch.Generator().manual_seed(7)
        rows = torch.randn(_TRIED_CHOICES, self.weight.shape[1], generator=draw)
        rows = rows.to(self.weight.dtype)
        expected = router(rows)[2].sort().values

        def agreement(parts: Self) -> float:
            return float((parts.choose(rows) == expected).all(1).float().mean())

        best = max((replace(self, groups=x) for x in (first, *others)), key=agreement)
        return best if agreement(best) >= _AGREEING else None

    def choose(self, rows: Tensor) -> Tensor:
        """Return the ids of the experts [tokens, n] for ``rows``, in their order."""
        scores = self._scores(rows)
        by = scores if self.correction is None else scores + self.correction
        return self.groups.leave(by).topk(self.chosen).indices.sort().values

    def weights(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Return the weights of the experts ``ids`` [tokens, n] for ``rows`` [tokens, hidden]."""
        kept = self._scores(rows).gather(1, ids)
        kept = (kept / kept.sum(1, keepdim=True) if self.normalizes else kept) * self.scale
        return kept if self.factors is None else kept * self.factors[ids]

    def _scores(self, rows: Tensor) -> Tensor:
        logits = rows.float() @ self.weight.float().T
        logits = logits if self.bias is None else logits + self.bias
        return logits.sigmoid() if self.sigmoid else logits.softmax(-1)


def _get_tensor(router: nn.Module, name: str) -> Tensor | None:
    """Return a parameter or buffer of a router or of a module in it, as one row of float32."""
    tensors = {**dict(router.named_parameters()), **dict(router.named_buffers())}
    matches = (x for key, x in tensors.items() if key.rpartition(".")[2] == name)
    tensor = next(matches, None)
    return None if tensor is None else tensor.detach().float().flatten()
