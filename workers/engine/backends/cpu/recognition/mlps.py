"""Reads the structure of MLPs and mixtures of experts from their modules."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.functional import silu

from workers.engine.backends.cpu.layers.activations import (
    XIELU,
    read_bends,
    recognise_activation,
)
from workers.engine.backends.cpu.layers.experts import PackedExperts, RouterParts
from workers.engine.backends.cpu.layers.linear import TiledLinear
from workers.engine.backends.cpu.recognition.parts import (
    NormParts,
    Unrecognised,
    expect,
    get_children,
    require_packed,
    take_one,
)

_MLP = ("mlp", "feed_forward", "block_sparse_moe", "shared_mlp")
"""Experts go before the MLP beside them."""
_SHARED = ("shared_expert", "shared_experts", "shared_mlp")
_UP = ("up_proj", "fc1", "dense_h_to_4h", "c_fc", "w3")
_SILENT_GATE = "w1"
"""Of MLPs that name no function (LFM2)."""
_GATE = ("gate_proj", _SILENT_GATE)
_GATE_AND_UP = ("gate_up_proj", "input_linear")
_DOWN = ("down_proj", "fc2", "dense_4h_to_h", "c_proj", "output_linear", "w2")
_CORRECTIONS = ("e_score_correction_bias", "expert_bias")
_NORMS_BESIDE_MLP = (
    "pre_feedforward_layernorm_2",
    "post_feedforward_layernorm_2",
    "post_feedforward_layernorm_1",
)
_FUNCTION = ("act_fn", "activation_fn", "act", "activation")


class Columns(NamedTuple):
    """Some of a linear layer's outputs."""

    linear: TiledLinear
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class MlpParts:
    gate: Columns | None
    up: Columns
    down: Columns
    activation: int
    bends: tuple[float, ...] = ()
    """The parameters of xIELU."""
    gate_factor: float = 1.0
    """Of the gate before its activation."""
    factor: float = 1.0
    """Of the output."""


@dataclass(frozen=True, slots=True)
class ExpertsParts:
    router: RouterParts
    router_norm: NormParts | None
    """Of the router's input, if that is not the experts'."""
    mlps: tuple[MlpParts, ...]
    limit: float
    shared: MlpParts | None
    shared_gate: Tensor | None


@dataclass(frozen=True, slots=True)
class ExpertsBesideMlp:
    """An MLP and experts that read the same residual, each after its own norm, and whose outputs
    are normalized before they are added (Gemma 4)."""

    mlp: MlpParts
    experts: ExpertsParts
    norm: NormParts
    """Of the experts' input."""
    out_norm: NormParts
    """Of the experts' output."""
    mlp_out_norm: NormParts


def read_mlp(
    layer: Any, children: dict[str, Any], hidden: int
) -> MlpParts | ExpertsParts | ExpertsBesideMlp:
    """Return the MLP, the experts or both of a layer, removed from its ``children``. Raises
    Unrecognised."""
    if {"mlp", "experts"} <= children.keys():
        mlp = children.pop("mlp")
        norms = (NormParts.read_row(take_one(children, (x,)), hidden) for x in _NORMS_BESIDE_MLP)
        parts = {name: take_one(children, (name,)) for name in ("experts", "router")}
        return ExpertsBesideMlp(_mlp(mlp, get_children(mlp)), _read_experts(parts), *norms)
    name = next((x for x in _MLP if x in children), None)
    if name is None:
        names = (*_UP, *_DOWN, *_FUNCTION)
        return _mlp(layer, {name: children.pop(name) for name in names if name in children})
    mlp = children.pop(name)
    inner = get_children(mlp)
    if "experts" not in inner:
        return _mlp(mlp, inner)
    inner |= {name: children.pop(name) for name in _SHARED if name in children}
    corrections = (getattr(mlp, name, None) for name in _CORRECTIONS)
    return _read_experts(inner, next((x for x in corrections if x is not None), None))


def _read_experts(children: dict[str, Any], correction: Tensor | None = None) -> ExpertsParts:
    """Return the experts, router and shared MLP that ``children`` are. ``correction`` is what their
    router is given to add to its scores."""
    experts = children.pop("experts")
    expect(isinstance(experts, PackedExperts), "experts are not packed")
    module = take_one(children, ("gate", "router"))
    router = RouterParts.read(module, correction)
    if router is None or router.scales_inputs != experts.takes_scaled:
        raise Unrecognised("a router is not known")
    shared = next((children.pop(name) for name in _SHARED if name in children), None)
    gate = children.pop("shared_expert_gate", None)
    expect(not children, f"experts have {sorted(children)} too")
    router_norm = _router_norm(module, router.weight.shape[1])
    expect(router_norm is None or shared is None, "a router reads other rows than a shared MLP")
    is_plain = gate is None or (type(gate) is nn.Linear and gate.bias is None)
    expect(is_plain, "a shared expert has an unexpected gate")
    read = _read_halves if experts.has_gate else _read_ungated
    mlps = tuple(
        read(up, down, experts.activation)
        for up, down in zip(experts.up, experts.down, strict=True)
    )
    return ExpertsParts(
        router,
        router_norm,
        mlps,
        experts.limit,
        None if shared is None else _mlp(shared, get_children(shared)),
        None if gate is None else gate.weight.detach()[0],
    )


def _router_norm(router: Any, hidden: int) -> NormParts | None:
    """Return the norm that a router has for its input, with the factors after it."""
    module = getattr(router, "norm", None)
    if not isinstance(module, nn.Module):
        return None
    is_known = all(hasattr(router, name) for name in ("scale", "scalar_root_size"))
    expect(is_known, "a router has an unknown norm")
    norm = NormParts.read_row(module, hidden)
    return replace(norm, weight=norm.weight * router.scale.detach() * router.scalar_root_size)


def _read_halves(both: TiledLinear, down: TiledLinear, activation: int) -> MlpParts:
    size = down.in_features
    expect(both.out_features == 2 * size, "an MLP has an unexpected width")
    gate, up = Columns(both, 0, size), Columns(both, size, 2 * size)
    return MlpParts(gate, up, Columns(down, 0, down.out_features), activation)


def _read_ungated(up: TiledLinear, down: TiledLinear, activation: int) -> MlpParts:
    size = down.in_features
    expect(up.out_features == size, "an MLP is uneven")
    return MlpParts(None, Columns(up, 0, size), Columns(down, 0, down.out_features), activation)


def _mlp(mlp: Any, children: dict[str, Any]) -> MlpParts:
    function = next((children.pop(x) for x in _FUNCTION if x in children), None)
    function = function or next((getattr(mlp, x) for x in _FUNCTION if hasattr(mlp, x)), None)
    if function is None and _SILENT_GATE in children:
        function = silu
    bends = read_bends(function)
    if bends is not None:
        activation: int | None = XIELU
    else:
        activation = None if function is None else recognise_activation(function)
    if activation is None:
        raise Unrecognised("an activation is not known")
    down = require_packed(take_one(children, _DOWN))
    size = down.in_features
    gate = None
    factors = [float(getattr(mlp, f"{x}_multiplier", 1.0)) for x in ("gate", "down")]
    is_scaled = factors != [1.0, 1.0]
    if any(name in children for name in _GATE_AND_UP):
        both = require_packed(take_one(children, _GATE_AND_UP))
        is_known = not children and bends is None and not is_scaled
        expect(is_known, f"an MLP has {sorted(children)}, xIELU or factors too")
        return _read_halves(both, down, activation)
    if any(name in children for name in _GATE):
        gate = Columns(require_packed(take_one(children, _GATE)), 0, size)
    up = Columns(require_packed(take_one(children, _UP)), 0, size)
    for linear in (gate, up):
        expect(linear is None or linear.linear.out_features == size, "an MLP is uneven")
    expect(not children, f"an MLP has {sorted(children)} too")
    expect(gate is None or bends is None, "an MLP has a gate for xIELU")
    is_known = not is_scaled or (gate is not None and not down.struct.bias)
    expect(is_known, "an MLP is scaled in an unknown way")
    whole = Columns(down, 0, down.out_features)
    return MlpParts(gate, up, whole, activation, bends or (), *factors)
