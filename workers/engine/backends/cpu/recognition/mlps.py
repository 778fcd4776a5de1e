"""Reads the structure of MLPs and mixtures of experts from their modules."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from workers.engine.backends.cpu.layers.activations import recognise_activation
from workers.engine.backends.cpu.layers.experts import PackedExperts, RouterParts
from workers.engine.backends.cpu.layers.linear import TiledLinear
from workers.engine.backends.cpu.recognition.parts import (
    Unrecognised,
    expect,
    get_children,
    require_packed,
    take_one,
)

_SHARED = ("shared_expert", "shared_experts", "shared_mlp")
_UP = ("up_proj", "fc1", "dense_h_to_4h", "c_fc")
_DOWN = ("down_proj", "fc2", "dense_4h_to_h", "c_proj")
_FUNCTION = ("act_fn", "activation_fn", "act")


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


@dataclass(frozen=True, slots=True)
class ExpertsParts:
    router: RouterParts
    mlps: tuple[MlpParts, ...]
    limit: float
    shared: MlpParts | None
    shared_gate: Tensor | None


def read_mlp(layer: Any, children: dict[str, Any]) -> MlpParts | ExpertsParts:
    """Return the MLP or the experts of a layer, removed from its ``children``. Raises
    Unrecognised."""
    if "mlp" not in children:
        names = (*_UP, *_DOWN, *_FUNCTION)
        return _mlp(layer, {name: children.pop(name) for name in names if name in children})
    mlp = children.pop("mlp")
    return _experts(mlp) or _mlp(mlp, get_children(mlp))


def _experts(mlp: Any) -> ExpertsParts | None:
    """None for a single MLP."""
    children = get_children(mlp)
    if "experts" not in children:
        return None
    experts = children.pop("experts")
    expect(isinstance(experts, PackedExperts), "experts are not packed")
    router = RouterParts.read(take_one(children, ("gate", "router")))
    if router is None:
        raise Unrecognised("a router is not known")
    shared = next((children.pop(name) for name in _SHARED if name in children), None)
    gate = children.pop("shared_expert_gate", None)
    expect(not children, f"experts have {sorted(children)} too")
    is_plain = gate is None or (type(gate) is nn.Linear and gate.bias is None)
    expect(is_plain, "a shared expert has an unexpected gate")
    mlps = tuple(
        _halves(both, down, experts.activation)
        for both, down in zip(experts.gate_up, experts.down, strict=True)
    )
    return ExpertsParts(
        router,
        mlps,
        experts.limit,
        None if shared is None else _mlp(shared, get_children(shared)),
        None if gate is None else gate.weight.detach()[0],
    )


def _halves(both: TiledLinear, down: TiledLinear, activation: int) -> MlpParts:
    size = down.in_features
    expect(both.out_features == 2 * size, "an MLP has an unexpected width")
    gate, up = Columns(both, 0, size), Columns(both, size, 2 * size)
    return MlpParts(gate, up, Columns(down, 0, down.out_features), activation)


def _mlp(mlp: Any, children: dict[str, Any]) -> MlpParts:
    function = next((children.pop(x) for x in _FUNCTION if x in children), None)
    function = function or next((getattr(mlp, x) for x in _FUNCTION if hasattr(mlp, x)), None)
    activation = None if function is None else recognise_activation(function)
    if activation is None:
        raise Unrecognised("an activation is not known")
    down = require_packed(take_one(children, _DOWN))
    size = down.in_features
    gate = None
    if "gate_up_proj" in children:
        both = require_packed(children.pop("gate_up_proj"))
        expect(not children, f"an MLP has {sorted(children)} too")
        return _halves(both, down, activation)
    if "gate_proj" in children:
        gate = Columns(require_packed(children.pop("gate_proj")), 0, size)
    up = Columns(require_packed(take_one(children, _UP)), 0, size)
    for linear in (gate, up):
        expect(linear is None or linear.linear.out_features == size, "an MLP is uneven")
    expect(not children, f"an MLP has {sorted(children)} too")
    return MlpParts(gate, up, Columns(down, 0, down.out_features), activation)
