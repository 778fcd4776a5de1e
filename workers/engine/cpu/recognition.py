"""Reads a decoder's structure from its modules: where norms, products and heads are.

A module's name suggests its role, and its output for test inputs shows which variant it is. The
result is checked at load like everything else, by comparing logits with the model's own.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from workers.engine.cpu.activations import activation_of
from workers.engine.cpu.experts import PackedExperts, RouterParts
from workers.engine.cpu.linear import TiledLinear
from workers.engine.cpu.parts import NormParts, Unrecognised
from workers.engine.cpu.rotary import Angles, Rotation
from workers.engine.model.kv_cache import AttentionRule

ROW_BLOCK = 32
MAX_QUERIES = 16
MAX_HEAD_DIM = 256
HEAD_MULTIPLE = 32

_TRIED_EMBEDDINGS = 64

_ATTENTION = ("self_attn", "attention")
_FUSED = ("qkv_proj", "query_key_value")
_OUTPUT = ("o_proj", "dense", "out_proj")
_SHARED = ("shared_expert", "shared_experts", "shared_mlp")
_QUERY_NORM = ("q_norm", "q_layernorm")
_KEY_NORM = ("k_norm", "k_layernorm")
_UP = ("up_proj", "fc1", "dense_h_to_4h", "c_fc")
_DOWN = ("down_proj", "fc2", "dense_4h_to_h", "c_proj")
_FUNCTION = ("act_fn", "activation_fn", "act")


class _Places(NamedTuple):
    """The names of a layer's norms: before and after attention, and before and after the MLP."""

    attention: str | None = None
    attention_out: str | None = None
    mlp: str | None = None
    mlp_out: str | None = None
    parallel: bool = False


_IN, _POST = "input_layernorm", "post_attention_layernorm"
_PRE_MLP, _POST_MLP = "pre_feedforward_layernorm", "post_feedforward_layernorm"
_NORMS = {
    frozenset({_IN, _POST}): _Places(_IN, None, _POST),
    frozenset({_IN}): _Places(_IN, None, _IN, parallel=True),
    frozenset({_IN, _PRE_MLP}): _Places(_IN, None, _PRE_MLP),
    frozenset({_POST, _POST_MLP}): _Places(None, _POST, None, _POST_MLP),
    frozenset({_IN, _POST, _PRE_MLP, _POST_MLP}): _Places(_IN, _POST, _PRE_MLP, _POST_MLP),
    frozenset({_IN, "post_self_attn_layernorm", _POST, "post_mlp_layernorm"}): _Places(
        _IN, "post_self_attn_layernorm", _POST, "post_mlp_layernorm"
    ),
}


class Columns(NamedTuple):
    """Some of a linear layer's outputs."""

    linear: TiledLinear
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of all layers, and where they lie in a projected row, as in kernels/model.h."""

    heads: int
    kv_heads: int
    dim: int
    query_step: int
    kv_step: int
    key_begin: int
    value_begin: int

    @property
    def width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.dim


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


@dataclass(frozen=True, slots=True)
class LayerParts:
    attention: nn.Module
    rule: AttentionRule
    projections: tuple[TiledLinear, ...]
    """Three projections, for queries, keys and values, or one for all of them."""
    heads: Heads
    output: TiledLinear
    mlp: MlpParts | ExpertsParts
    attention_norm: NormParts | None
    attention_out_norm: NormParts | None
    mlp_norm: NormParts | None
    mlp_out_norm: NormParts | None
    query_norm: tuple[NormParts, int] | None
    key_norm: tuple[NormParts, int] | None
    angles: tuple[Tensor, Tensor] | None
    rotation: Rotation | None
    parallel: bool


@dataclass(frozen=True, slots=True)
class DecoderParts:
    embedding: Tensor
    embedding_scale: float
    residual_scale: float
    logits_scale: float
    logits_softcap: float
    layers: tuple[LayerParts, ...]
    norm: NormParts | None
    head: TiledLinear


def read_decoder(model: Any, rules: dict[nn.Module, AttentionRule], max_len: int) -> DecoderParts:
    """The parts of ``model``, whose attention layers have ``rules`` in the order in which they ran.
    Raises Unrecognised."""
    decoder = model.get_decoder()
    children = _children(decoder)
    embedding = _one(children, ("embed_tokens", "embed_in"))
    layers = _one(children, ("layers",))
    norm = _one(children, ("norm", "final_layernorm", "final_layer_norm"))
    rotary = _one(children, ("rotary_emb",))
    _expect(not children, "the decoder has other modules")
    hidden = embedding.weight.shape[1]
    _expect(isinstance(embedding, nn.Embedding), "embeddings are not an nn.Embedding")
    _expect(hidden % ROW_BLOCK == 0, "the hidden size is no multiple of 32")
    head = model.get_output_embeddings()
    _expect(isinstance(head, TiledLinear), "the output layer is not packed")
    _expect(len(layers) == len(rules), "layers attend never or more than once")
    angles = Angles(rotary, max_len)
    found = tuple(
        _layer(layer, rule, module, hidden, angles)
        for layer, (module, rule) in zip(layers, rules.items(), strict=True)
    )
    _expect(len({(x.heads, x.rotation, x.parallel) for x in found}) == 1, "layers differ in heads")
    spans = {tuple(n and n[1] for n in (x.query_norm, x.key_norm)) for x in found}
    _expect(len(spans) == 1, "layers differ in norms of heads")
    text = model.config.get_text_config()
    return DecoderParts(
        embedding=embedding.weight,
        embedding_scale=_embedding_scale(decoder, embedding),
        residual_scale=float(getattr(layers[0], "residual_multiplier", 1.0)),
        logits_scale=_logits_scale(model, text),
        logits_softcap=float(getattr(text, "final_logit_softcapping", None) or 0),
        layers=found,
        norm=_norm(norm, hidden),
        head=head,
    )


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Unrecognised(otherwise)


def _children(module: nn.Module) -> dict[str, Any]:
    """The child modules, without dropout and identities."""
    idle = (nn.Dropout, nn.Identity)
    return {name: x for name, x in module.named_children() if not isinstance(x, idle)}


def _one(children: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Remove and return the child that has any of these names."""
    for name in names:
        if name in children:
            return children.pop(name)
    raise Unrecognised(f"there is no {names[0]}")


def _own_linear(module: Any) -> TiledLinear:
    _expect(isinstance(module, TiledLinear), "a linear layer is not packed")
    packed: TiledLinear = module
    return packed


def _norm(module: Any, size: int) -> NormParts:
    parts = NormParts.read(module, size)
    if parts is None or parts.weight.shape != (size,):
        raise Unrecognised(f"{type(module).__name__} is no known norm")
    return parts


def _embedding_scale(decoder: Any, embedding: Any) -> float:
    """The embedding class may scale its output, or the decoder that holds it may."""
    if type(embedding) is nn.Embedding:
        return float(getattr(decoder, "embedding_multiplier", 1.0))
    rows = embedding.weight[:_TRIED_EMBEDDINGS].detach().float()  # that of padding is zero
    token, place = divmod(int(rows.abs().argmax()), rows.shape[1])
    scale = getattr(embedding, "embed_scale", None)
    if scale is None:
        raise Unrecognised(f"{type(embedding).__name__} is not a known embedding")
    factor = float(torch.as_tensor(scale).to(embedding.weight.dtype))
    with torch.inference_mode():
        answer = float(embedding(torch.tensor([token]))[0, place].float() / rows[token, place])
    _expect(abs(answer - factor) < 0.01 * abs(factor), "embeddings do more than scale")
    return factor


def _logits_scale(model: Any, text: Any) -> float:
    if (scale := getattr(model, "logit_scale", None)) is not None:
        return float(scale)
    return 1 / float(getattr(text, "logits_scaling", 1.0))


def _layer(
    layer: Any, rule: AttentionRule, module: nn.Module, hidden: int, angles: Angles
) -> LayerParts:
    children = _children(layer)
    attention = _one(children, _ATTENTION)
    _expect(attention is module, "layers attend in another order")
    mlp = _one(children, ("mlp",))
    places = _NORMS.get(frozenset(children))
    if places is None:
        raise Unrecognised(f"a layer consists of {sorted(children)}")
    parallel = places.parallel or bool(getattr(layer, "use_parallel_residual", False))

    def norm(place: str | None) -> NormParts | None:
        return None if place is None else _norm(children[place], hidden)

    _expect(rule.visible.chunk is None, "attention is cut into chunks")
    projections, output, heads, head_norms = _heads(attention)
    _expect(output.out_features == hidden, "attention has another width")
    rotation, tables = angles.of(attention, heads.dim)
    experts = _experts(mlp)
    _expect(experts is None or not (parallel or places.mlp_out), "experts are added otherwise")
    return LayerParts(
        attention=attention,
        rule=rule,
        projections=projections,
        heads=heads,
        output=output,
        mlp=experts or _mlp(mlp),
        attention_norm=norm(places.attention),
        attention_out_norm=norm(places.attention_out),
        mlp_norm=norm(places.mlp),
        mlp_out_norm=norm(places.mlp_out),
        query_norm=head_norms[0],
        key_norm=head_norms[1],
        angles=tables,
        rotation=rotation,
        parallel=parallel,
    )


_HeadNorm = tuple[NormParts, int] | None


def _heads(
    attention: Any,
) -> tuple[tuple[TiledLinear, ...], TiledLinear, Heads, tuple[_HeadNorm, _HeadNorm]]:
    children = _children(attention)
    sizes = (getattr(attention, name, None) for name in ("head_dim", "head_size"))
    dim: int = next(filter(None, sizes), 0)
    _expect(0 < dim <= MAX_HEAD_DIM and dim % HEAD_MULTIPLE == 0, f"heads have {dim} numbers")
    output = _own_linear(_one(children, _OUTPUT))
    num_heads = output.in_features // dim
    projections: tuple[TiledLinear, ...]
    if "q_proj" in children:
        projections = tuple(_own_linear(children.pop(f"{x}_proj")) for x in "qkv")
        kv_heads = projections[1].out_features // dim
        _expect(projections[0].out_features == num_heads * dim, "queries have another width")
        _expect(projections[2].out_features == kv_heads * dim, "values have another width")
        side_by_side = False
    else:
        side_by_side = "query_key_value" in children
        projections = (_own_linear(_one(children, _FUSED)),)
        kv_heads = (projections[0].out_features // dim - num_heads) // 2
    _expect(kv_heads > 0 and num_heads % kv_heads == 0, "heads share no keys")
    _expect(num_heads // kv_heads <= MAX_QUERIES, "too many heads share a key")
    group = num_heads // kv_heads
    if side_by_side:  # of each key head: its queries, then key and value
        step = (group + 2) * dim
        heads = Heads(num_heads, kv_heads, dim, step, step, group * dim, (group + 1) * dim)
    else:
        first = num_heads * dim
        heads = Heads(num_heads, kv_heads, dim, group * dim, dim, first, first + kv_heads * dim)
    _expect(heads.width == sum(x.out_features for x in projections), "heads have other widths")
    norms = []
    for names, count in ((_QUERY_NORM, num_heads), (_KEY_NORM, kv_heads)):
        module = next((children.pop(name) for name in names if name in children), None)
        parts = module and NormParts.read_heads(module, count, dim)
        _expect(module is None or parts is not None, "a norm of heads is not known")
        norms.append(parts)
    _expect(not children, f"attention has {sorted(children)} too")
    _expect(not (side_by_side and any(n and n[1] != dim for n in norms)), "heads lie apart")
    return projections, output, heads, (norms[0], norms[1])


def _experts(mlp: Any) -> ExpertsParts | None:
    """None for a single MLP."""
    children = _children(mlp)
    if "experts" not in children:
        return None
    experts = children.pop("experts")
    _expect(isinstance(experts, PackedExperts), "experts are not packed")
    router = RouterParts.read(_one(children, ("gate", "router")))
    if router is None:
        raise Unrecognised("a router is not known")
    shared = next((children.pop(name) for name in _SHARED if name in children), None)
    gate = children.pop("shared_expert_gate", None)
    _expect(not children, f"experts have {sorted(children)} too")
    is_plain = gate is None or (type(gate) is nn.Linear and gate.bias is None)
    _expect(is_plain, "a shared expert has another gate")
    mlps = tuple(
        _halves(both, down, experts.activation)
        for both, down in zip(experts.gate_up, experts.down, strict=True)
    )
    return ExpertsParts(
        router,
        mlps,
        experts.limit,
        None if shared is None else _mlp(shared),
        None if gate is None else gate.weight.detach()[0],
    )


def _halves(both: TiledLinear, down: TiledLinear, activation: int) -> MlpParts:
    size = down.in_features
    _expect(both.out_features == 2 * size, "an MLP has another width")
    gate, up = Columns(both, 0, size), Columns(both, size, 2 * size)
    return MlpParts(gate, up, Columns(down, 0, down.out_features), activation)


def _mlp(mlp: Any) -> MlpParts:
    children = _children(mlp)
    function = next((children.pop(x) for x in _FUNCTION if x in children), None)
    function = function or next((getattr(mlp, x) for x in _FUNCTION if hasattr(mlp, x)), None)
    activation = None if function is None else activation_of(function)
    if activation is None:
        raise Unrecognised("an activation is not known")
    down = _own_linear(_one(children, _DOWN))
    size = down.in_features
    gate = None
    if "gate_up_proj" in children:
        both = _own_linear(children.pop("gate_up_proj"))
        _expect(not children, f"an MLP has {sorted(children)} too")
        return _halves(both, down, activation)
    if "gate_proj" in children:
        gate = Columns(_own_linear(children.pop("gate_proj")), 0, size)
    up = Columns(_own_linear(_one(children, _UP)), 0, size)
    for linear in (gate, up):
        _expect(linear is None or linear.linear.out_features == size, "an MLP is uneven")
    _expect(not children, f"an MLP has {sorted(children)} too")
    return MlpParts(gate, up, Columns(down, 0, down.out_features), activation)
