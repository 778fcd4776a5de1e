"""Splits a model among ranks, by transformers' plan for its architecture. If the plan's equal parts
would cut an attention head in two, Quire divides the heads itself."""

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.distributed.parallel_utils import (
    ALL_PARALLEL_STYLES,
    replace_layer_number_by_wildcard,
)

from workers.engine.backends.parallel.division import Share, divide, is_even
from workers.engine.backends.parallel.group import Ranks
from workers.engine.compat import tensor_parallel_mesh
from workers.engine.exceptions import UnsupportedModel

logger = logging.getLogger(__name__)

_PROJECTIONS = {"q_proj": "colwise", "k_proj": "colwise", "v_proj": "colwise", "o_proj": "rowwise"}
"""The layers of an attention module whose outputs or inputs are its heads, and their styles in a
plan that splits the heads."""
_WHOLE = "replicate"
_EXPERTS = "grouped_gemm"
"""The style of weights whose first dimension counts experts."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a rank reads its part of a model."""

    ranks: Ranks
    config: DistributedConfig
    share: Share | None
    """The heads to cut out of attention layers that were read whole; None if transformers' equal
    parts are whole heads."""

    def settle(self, model: Any) -> None:
        """Finish a model that was read with this configuration."""
        if self.share is not None:
            _cut_heads(model, self.share)
        _use_local_weights(model)
        del model.config.distributed_config  # a miniature of the model is not split


def plan_sharding(skeleton: Any, ranks: Ranks) -> Sharding:
    """Plan for a model without weights. Raises UnsupportedModel if it cannot be split."""
    name, size = type(skeleton).__name__, ranks.size
    plan: dict[str, str] = skeleton.tp_plan
    if not plan:
        raise UnsupportedModel(
            f"transformers has no plan to split {name}: set tensor_parallel_size = 1"
        )
    experts = [
        weight.shape[0]
        for path, weight in skeleton.named_parameters()
        if skeleton.ep_plan.get(replace_layer_number_by_wildcard(path)) == _EXPERTS
    ]
    ep_size = size if experts and all(count % size == 0 for count in experts) else 1
    heads, kv_heads = _num_heads(skeleton)
    own_names = {_own_name(path): style for path, style in plan.items()}
    share, whole = None, {}
    if own_names.get("q_proj") == "colwise" and not is_even(heads, kv_heads, size):
        try:
            share = divide(heads, kv_heads, size)[ranks.rank]
        except ValueError as error:
            raise UnsupportedModel(f"{name}: {error}") from error
        whole = _read_whole(name, plan, heads, kv_heads, size)
    elif own_names.get("q_b_proj") == "colwise" and heads % size:
        raise _uneven(name, heads, kv_heads, size)
    logger.info(
        "rank %d of %d computes %s, %s",
        ranks.rank,
        size,
        "an equal part of the heads" if share is None else f"heads {_span(share.heads)}",
        "whole experts" if ep_size > 1 else "a part of each layer",
    )
    return Sharding(
        ranks, DistributedConfig(tp_size=size, tp_plan=whole or "auto", ep_size=ep_size), share
    )


def _span(heads: range) -> str:
    return f"{heads.start} to {heads.stop - 1}"


def _own_name(path: str) -> str:
    return path.rpartition(".")[2]


def _read_whole(
    name: str, plan: dict[str, str], heads: int, kv_heads: int, size: int
) -> dict[str, str]:
    """Return the rules that leave attention layers whole. Raises UnsupportedModel for attention
    that has more parts than the usual ones."""
    whole = {path: _WHOLE for path in plan if _own_name(path) in _PROJECTIONS}
    modules = {path.rpartition(".")[0] for path in whole}
    usual = all(plan[path] == _PROJECTIONS[_own_name(path)] for path in whole)
    per_head = [
        path
        for path, style in plan.items()
        if path.rpartition(".")[0] in modules
        and path not in whole
        and style != "replicated_with_grad_allreduce"
    ]
    if not usual or per_head:
        raise _uneven(name, heads, kv_heads, size)
    return whole


def _uneven(name: str, heads: int, kv_heads: int, size: int) -> UnsupportedModel:
    return UnsupportedModel(
        f"{name} has {heads} attention heads and {kv_heads} KV heads, which {size} ranks cannot "
        "share evenly: set tensor_parallel_size to a divisor of both"
    )


def _num_heads(model: Any) -> tuple[int, int]:
    """Return the attention heads and KV heads of every layer."""
    text = model.config.get_text_config()
    heads: int = getattr(text, "num_attention_heads", None) or 1
    return heads, getattr(text, "num_key_value_heads", None) or heads


@torch.no_grad()
def _cut_heads(model: Any, share: Share) -> None:
    """Keep the rank's heads of every attention layer."""
    heads, kv_heads = _num_heads(model)
    mesh = tensor_parallel_mesh(model)  # the group that sums the ranks' parts
    for module in model.modules():
        if not all(hasattr(module, each) for each in _PROJECTIONS):
            continue
        for name, total, kept in (
            ("q_proj", heads, share.heads),
            ("k_proj", kv_heads, share.kv_heads),
            ("v_proj", kv_heads, share.kv_heads),
        ):
            _keep_outputs(getattr(module, name), total, kept)
        _keep_inputs(module.o_proj, heads, share.heads)
        ALL_PARALLEL_STYLES["rowwise"].install_forward(module.o_proj, mesh)
        module.num_key_value_groups = len(share.heads) // len(share.kv_heads)


def _keep_outputs(layer: nn.Linear, heads: int, kept: range) -> None:
    width = layer.out_features // heads
    rows = slice(kept.start * width, kept.stop * width)
    layer.weight = nn.Parameter(layer.weight[rows].clone(), requires_grad=False)
    if layer.bias is not None:
        layer.bias = nn.Parameter(layer.bias[rows].clone(), requires_grad=False)
    layer.out_features = len(layer.weight)


def _keep_inputs(layer: nn.Linear, heads: int, kept: range) -> None:
    width = layer.in_features // heads
    columns = slice(kept.start * width, kept.stop * width)
    layer.weight = nn.Parameter(layer.weight[:, columns].clone(), requires_grad=False)
    layer.in_features = layer.weight.shape[1]


def _use_local_weights(model: Any) -> None:
    """Replace the sharded weights of linear layers by the rank's own parts: transformers' forwards
    of these layers accept both, and finding the part takes longer than a small product."""
    for module in model.modules():
        if type(module) is nn.Linear:
            for name, weight in module.named_parameters(recurse=False):
                if isinstance(weight, DTensor):
                    local = nn.Parameter(weight.to_local(), requires_grad=False)
                    setattr(module, name, local)
