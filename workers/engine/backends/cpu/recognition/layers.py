"""Reads a layer of a decoder from its modules: what computes tokens from others, MLPs and norms."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor, nn

from workers.engine.backends.base.cache_probe import AttentionRule, CacheProbe
from workers.engine.backends.base.temperatures import is_tuned_last
from workers.engine.backends.cpu.recognition.convolutions import (
    ShortConvolutionParts,
    read_short_convolution,
)
from workers.engine.backends.cpu.recognition.delta_networks import DeltaParts, read_delta_network
from workers.engine.backends.cpu.recognition.heads import (
    AttentionParts,
    Heads,
    read_attention,
)
from workers.engine.backends.cpu.recognition.layer_inputs import LayerInputParts, read_layer_input
from workers.engine.backends.cpu.recognition.mlps import (
    ExpertsBesideMlp,
    ExpertsParts,
    MlpParts,
    read_mlp,
)
from workers.engine.backends.cpu.recognition.parts import (
    NormParts,
    Unrecognised,
    expect,
    get_children,
)
from workers.engine.backends.cpu.recognition.rotary import Angles, Rotation
from workers.engine.backends.cpu.recognition.state_spaces import StateSpaceParts, read_state_space

_ATTENTION = ("self_attn", "attention", "attn", "self_attention")
_DELTA_NETWORK = "linear_attn"
_SHORT_CONVOLUTION = "conv"
_STATE_SPACE = "mamba"
_MIXER = "mixer"
"""The only part of a layer, which may be any of these or an MLP (Nemotron-H)."""


class _Places(NamedTuple):
    """The names of a layer's norms: before and after attention, and before and after the MLP."""

    attention: str | None = None
    attention_out: str | None = None
    mlp: str | None = None
    mlp_out: str | None = None
    parallel: bool = False


_IN, _POST = "input_layernorm", "post_attention_layernorm"
_PRE_MLP, _POST_MLP = "pre_feedforward_layernorm", "post_feedforward_layernorm"
_ONLY = "norm"
"""The norm of a layer with one part."""
_NORMS = {
    frozenset({_IN, _POST}): _Places(_IN, None, _POST),
    frozenset({_IN, _POST, "post_norm1", "post_norm2"}): _Places(
        _IN, "post_norm1", _POST, "post_norm2"
    ),
    frozenset({"attention_layernorm", "feedforward_layernorm"}): _Places(
        "attention_layernorm", None, "feedforward_layernorm"
    ),
    frozenset({_IN, "pre_ff_layernorm"}): _Places(_IN, None, "pre_ff_layernorm"),
    frozenset({"operator_norm", "ffn_norm"}): _Places("operator_norm", None, "ffn_norm"),
    frozenset({"ln_1", "ln_2"}): _Places("ln_1", None, "ln_2"),
    frozenset({"self_attn_layer_norm", "final_layer_norm"}): _Places(
        "self_attn_layer_norm", None, "final_layer_norm"
    ),
    frozenset({_IN}): _Places(_IN, None, _IN, parallel=True),
    frozenset({"ln_attn", "ln_mlp"}): _Places("ln_attn", None, "ln_mlp", parallel=True),
    frozenset({_IN, _PRE_MLP}): _Places(_IN, None, _PRE_MLP),
    frozenset({_POST, _POST_MLP}): _Places(None, _POST, None, _POST_MLP),
    frozenset({_IN, _POST, _PRE_MLP, _POST_MLP}): _Places(_IN, _POST, _PRE_MLP, _POST_MLP),
    frozenset({_IN, "post_self_attn_layernorm", _POST, "post_mlp_layernorm"}): _Places(
        _IN, "post_self_attn_layernorm", _POST, "post_mlp_layernorm"
    ),
}


@dataclass(frozen=True, slots=True)
class KindOfHeads:
    """Heads, how they are rotated, and how many numbers the norms of queries and of keys take."""

    heads: Heads
    rotation: Rotation | None
    spans: tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """Attention, what its tokens see, and how its heads are rotated."""

    module: nn.Module
    rule: AttentionRule
    parts: AttentionParts
    angles: tuple[Tensor, Tensor] | None
    rotation: Rotation | None
    temperatures: Tensor | None
    """Factors of queries [positions]."""
    key_factor: float = 1.0
    value_factor: float = 1.0
    """Of projected keys and values."""

    @property
    def kind(self) -> KindOfHeads:
        query, key, _ = (norm and norm[1] for norm in self.parts.norms)
        return KindOfHeads(self.parts.heads, self.rotation, (query, key))


class SpaceBesideAttention(NamedTuple):
    """A state-space layer that reads what attention reads, and the factors by which the outputs of
    both are multiplied (Falcon-H1)."""

    space: StateSpaceParts
    factor: float
    attention_factor: float


Network = DeltaParts | ShortConvolutionParts | StateSpaceParts
"""What keeps states."""


@dataclass(frozen=True, slots=True)
class LayerParts:
    mixer: AttentionLayer | Network | None
    """What computes a token from others; its norms are called those of attention."""
    beside: SpaceBesideAttention | None
    mlp: MlpParts | ExpertsParts | ExpertsBesideMlp | None
    attention_norm: NormParts | None
    attention_out_norm: NormParts | None
    mlp_norm: NormParts | None
    mlp_out_norm: NormParts | None
    parallel: bool
    input: LayerInputParts | None
    factor: float
    """Of the residual after the layer."""

    @property
    def network(self) -> Network | None:
        """What keeps states, in place of attention or beside it."""
        if self.beside is not None:
            return self.beside.space
        return None if isinstance(self.mixer, AttentionLayer) else self.mixer

    @property
    def experts(self) -> ExpertsParts | None:
        if isinstance(self.mlp, ExpertsBesideMlp):
            return self.mlp.experts
        return self.mlp if isinstance(self.mlp, ExpertsParts) else None

    @property
    def dense_mlp(self) -> MlpParts | None:
        """The MLP of all rows, unless it is a part of the experts."""
        if isinstance(self.mlp, ExpertsBesideMlp):
            return self.mlp.mlp
        return self.mlp if isinstance(self.mlp, MlpParts) else None


def get_residual_scale(layer: Any) -> float:
    names = ("residual_multiplier", "residual_scale")
    return float(next((getattr(layer, name) for name in names if hasattr(layer, name)), 1.0))


def read_layer(layer: Any, probe: CacheProbe, hidden: int, angles: Angles | None) -> LayerParts:
    """Raises Unrecognised."""
    children = get_children(layer)
    is_only = _MIXER in children
    if is_only:
        _name_mixer(children, probe)
    mixer, beside = _read_mixer(layer, children, probe, angles)
    if mixer is not None:
        output = mixer.parts.output if isinstance(mixer, AttentionLayer) else mixer.output
        expect(output.out_features == hidden, "attention has an unexpected width")
    own_input = read_layer_input(layer, children, hidden)
    has_mlp = mixer is None or not is_only
    mlp = read_mlp(layer, children, hidden) if has_mlp else None
    places = _NORMS.get(frozenset(children))
    if is_only and children.keys() == {_ONLY}:
        places = _Places(mlp=_ONLY) if has_mlp else _Places(_ONLY)
    if places is None:
        raise Unrecognised(f"a layer consists of {sorted(children)}")
    parallel = places.parallel or bool(getattr(layer, "use_parallel_residual", False))
    is_known = not parallel or (mixer is not None and isinstance(mlp, MlpParts) and beside is None)
    expect(is_known, "the branches of a layer are added in an unknown way")

    def norm(place: str | None) -> NormParts | None:
        return None if place is None else NormParts.read_row(children[place], hidden)

    _expect_known_experts(layer, mlp, places)
    return LayerParts(
        mixer=mixer,
        beside=beside,
        mlp=mlp,
        attention_norm=norm(places.attention),
        attention_out_norm=norm(places.attention_out),
        mlp_norm=norm(places.mlp),
        mlp_out_norm=norm(places.mlp_out),
        parallel=parallel,
        input=own_input,
        factor=float(getattr(layer, "layer_scalar", 1.0)),
    )


def _name_mixer(children: dict[str, Any], probe: CacheProbe) -> None:
    """Give the only part of a layer the name that it has in layers with several."""
    mixer = children.pop(_MIXER)
    if mixer in probe.rules:
        children[_ATTENTION[0]] = mixer
    else:
        children[_STATE_SPACE if "conv1d" in get_children(mixer) else "mlp"] = mixer


def _read_mixer(
    layer: Any, children: dict[str, Any], probe: CacheProbe, angles: Angles | None
) -> tuple[AttentionLayer | Network | None, SpaceBesideAttention | None]:
    """Return what computes a token from others, removed from a layer's ``children``, and what does
    it beside attention. A layer of which an MLP is the only part has neither."""
    if _DELTA_NETWORK in children:
        return read_delta_network(children.pop(_DELTA_NETWORK)), None
    if _SHORT_CONVOLUTION in children:
        return read_short_convolution(children.pop(_SHORT_CONVOLUTION)), None
    space = None
    if _STATE_SPACE in children:
        space = read_state_space(children.pop(_STATE_SPACE))
    attention = next((children.pop(name) for name in _ATTENTION if name in children), None)
    if attention is None:
        expect(space is not None or "mlp" in children, f"there is no {_ATTENTION[0]}")
        return space, None
    by = float(getattr(layer, "attention_in_multiplier", 1.0))
    mixer = _attention(attention, probe, angles, by)
    if space is None:
        return mixer, None
    factors = (getattr(layer, f"{x}_out_multiplier", 1.0) for x in ("ssm", "attn"))
    return mixer, SpaceBesideAttention(space, *map(float, factors))


def _expect_known_experts(
    layer: Any, mlp: MlpParts | ExpertsParts | ExpertsBesideMlp | None, places: _Places
) -> None:
    is_single = mlp is None or isinstance(mlp, MlpParts)
    is_scaled = get_residual_scale(layer) != 1
    experts = mlp if isinstance(mlp, ExpertsParts) else None
    scales_inputs = experts is not None and experts.router.scales_inputs
    expect(not (is_scaled and scales_inputs), "experts are scaled twice")
    expect(is_single or not (is_scaled and places.mlp_out), "experts are scaled twice")
    is_known = not isinstance(mlp, ExpertsBesideMlp) or places.mlp_out is not None
    expect(is_known, "experts are added in an unknown way")


def _attention(
    attention: Any, probe: CacheProbe, angles: Angles | None, by: float
) -> AttentionLayer:
    """``by``: the factor of its inputs."""
    rule = probe.rules.get(attention)
    if rule is None:
        raise Unrecognised("layers attend never or more than once")
    parts = read_attention(attention, probe.shapes[attention])
    size = parts.rotated
    rotation, tables = (None, None) if angles is None else angles.get(attention, size)
    turns_whole = tables is not None and rotation is not None and rotation.dim == size
    expect(parts.latents is None or turns_whole, "a shared part of keys is not rotated")
    temperatures = None if angles is None else angles.compute_temperatures(attention)
    is_plain = not any(parts.norms) and parts.latents is None
    is_known = temperatures is None or (is_plain and (tables is None or is_tuned_last(attention)))
    expect(is_known, "heads are tuned in an unknown order")
    whole = _whole_rule(rule, attention)
    whole = replace(whole, scale=whole.scale * by)
    key_factor = by * float(getattr(attention, "key_multiplier", 1.0))
    is_scaled = key_factor != 1 or by != 1
    is_plain = is_plain and parts.is_linear
    expect(is_plain or not is_scaled, "heads are scaled in an unknown way")
    return AttentionLayer(
        attention, whole, parts, tables, rotation, temperatures, key_factor, value_factor=by
    )


def _whole_rule(rule: AttentionRule, attention: Any) -> AttentionRule:
    """Return the rule with the factor that some models apply to queries before they attend."""
    scale = getattr(attention, "scaling", None)
    return replace(rule, scale=scale) if rule.scale == 1 and isinstance(scale, float) else rule
