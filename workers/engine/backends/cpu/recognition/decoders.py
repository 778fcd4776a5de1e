"""Reads a decoder's structure from its modules: where norms, products and heads are.

A module's name suggests its role, and its output for test inputs shows which variant it is. The
result is checked at load like everything else, by comparing logits with the model's own.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor, nn

from workers.engine.backends.base.cache_probe import AttentionRule, CacheProbe
from workers.engine.backends.base.temperatures import is_tuned_last
from workers.engine.backends.cpu.layers.linear import TiledLinear
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
from workers.engine.backends.cpu.recognition.layer_inputs import (
    LayerInputParts,
    LayerInputsParts,
    read_layer_input,
    read_layer_inputs,
)
from workers.engine.backends.cpu.recognition.mlps import (
    ExpertsBesideMlp,
    ExpertsParts,
    MlpParts,
    read_mlp,
)
from workers.engine.backends.cpu.recognition.parts import (
    NormParts,
    Unrecognised,
    embedding_scale,
    expect,
    get_children,
    take_one,
)
from workers.engine.backends.cpu.recognition.rotary import Angles, Rotation

ROW_BLOCK = 32

_EMBEDDING = ("embed_tokens", "embed_in", "wte", "word_embeddings")
_POSITION_EMBEDDING = ("wpe", "embed_positions")
_LAYERS = ("layers", "h")
_NORM = ("norm", "final_layernorm", "final_layer_norm", "ln_f", "layer_norm", "embedding_norm")
_ROTARY = ("rotary_emb", "pos_emb")
_ATTENTION = ("self_attn", "attention", "attn", "self_attention")
_DELTA_NETWORK = "linear_attn"
_SHORT_CONVOLUTION = "conv"


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
    frozenset({_IN, _POST, "post_norm1", "post_norm2"}): _Places(
        _IN, "post_norm1", _POST, "post_norm2"
    ),
    frozenset({"attention_layernorm", "feedforward_layernorm"}): _Places(
        "attention_layernorm", None, "feedforward_layernorm"
    ),
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

    @property
    def kind(self) -> KindOfHeads:
        query, key, _ = (norm and norm[1] for norm in self.parts.norms)
        return KindOfHeads(self.parts.heads, self.rotation, (query, key))


@dataclass(frozen=True, slots=True)
class LayerParts:
    mixer: AttentionLayer | DeltaParts | ShortConvolutionParts
    """What computes a token from others; its norms are called those of attention."""
    mlp: MlpParts | ExpertsParts | ExpertsBesideMlp
    attention_norm: NormParts | None
    attention_out_norm: NormParts | None
    mlp_norm: NormParts | None
    mlp_out_norm: NormParts | None
    parallel: bool
    input: LayerInputParts | None
    factor: float
    """Of the residual after the layer."""

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


@dataclass(frozen=True, slots=True)
class DecoderParts:
    embedding: Tensor
    position_embedding: Tensor | None
    """Learned embeddings of positions [positions, hidden]."""
    inputs: LayerInputsParts | None
    embedding_scale: float
    residual_scale: float
    logits_scale: float
    logits_softcap: float
    layers: tuple[LayerParts, ...]
    norm: NormParts | None
    head: TiledLinear

    @property
    def attention(self) -> list[AttentionLayer]:
        return [x.mixer for x in self.layers if isinstance(x.mixer, AttentionLayer)]

    @property
    def kinds(self) -> list[KindOfHeads]:
        """The kinds of heads that layers have, each once."""
        return list(dict.fromkeys(x.kind for x in self.attention))

    @property
    def width(self) -> int:
        """How many numbers of a token are projected at most."""
        widths = [x.heads.width for x in self.kinds]
        widths += [self.inputs.size] if self.inputs is not None else []
        return max(widths + [x.width for x in self.networks])

    @property
    def widest_query(self) -> int:
        """How many numbers the queries of a token have at most."""
        return max(x.heads.heads * x.heads.dim for x in self.kinds)

    @property
    def widest_latent(self) -> int:
        return max(x.heads.widest_latent for x in self.kinds)

    @property
    def widest_output(self) -> int:
        """How many numbers of a token attention or a network computes at most."""
        outputs = [x.output for x in self.networks]
        outputs += [x.parts.output for x in self.attention]
        return max(output.in_features for output in outputs)

    @property
    def networks(self) -> list[DeltaParts | ShortConvolutionParts]:
        """What is in place of attention, and keeps states."""
        return [x.mixer for x in self.layers if not isinstance(x.mixer, AttentionLayer)]


def read_decoder(
    model: Any, probe: CacheProbe, stateful: Collection[nn.Module], max_len: int
) -> DecoderParts:
    """Return the parts of ``model``, whose attention layers ran in the order of ``probe``'s rules.
    ``stateful`` are the modules that keep states. Raises Unrecognised."""
    decoder = model.get_decoder()
    decoder = getattr(model, "model", decoder) if decoder is model else decoder  # Llama 4
    children = get_children(decoder)
    embedding = take_one(children, _EMBEDDING)
    layers = take_one(children, _LAYERS)
    norm = take_one(children, _NORM)
    learned = _position_embedding(children, max_len)
    names = () if learned is not None else _ROTARY
    rotary = next((children.pop(name) for name in names if name in children), None)
    has_places = rotary is not None or learned is not None
    are_all_positionless = probe.rules.keys() <= probe.positionless
    expect(has_places or are_all_positionless, "there is no rotary_emb")
    inputs = read_layer_inputs(decoder, children, len(embedding.weight))
    expect(not children, "the decoder has other modules")
    hidden = embedding.weight.shape[1]
    expect(isinstance(embedding, nn.Embedding), "embeddings are not an nn.Embedding")
    expect(hidden % ROW_BLOCK == 0, "the hidden size is not a multiple of 32")
    head = model.get_output_embeddings()
    expect(isinstance(head, TiledLinear), "the output layer is not packed")
    angles = None if rotary is None else Angles(rotary, max_len, probe.positionless)
    found = tuple(_layer(layer, probe, hidden, angles) for layer in layers)
    expect(len({x.parallel for x in found}) == 1, "layers differ in their order")
    text = model.config.get_text_config()
    parts = DecoderParts(
        embedding=embedding.weight,
        position_embedding=learned,
        inputs=inputs,
        embedding_scale=_embedding_scale(decoder, embedding),
        residual_scale=_residual_scale(layers[0]),
        logits_scale=_logits_scale(model, text),
        logits_softcap=float(getattr(text, "final_logit_softcapping", None) or 0),
        layers=found,
        norm=NormParts.read_row(norm, hidden),
        head=head,
    )
    attending = [x.module for x in parts.attention]
    expect(attending == list(probe.rules), "layers attend in an unexpected order")
    expect(bool(attending), "no layer attends")
    with_states = {x.module for x in parts.networks}
    expect(with_states == set(stateful), "other modules keep states")
    return parts


def _position_embedding(children: dict[str, Any], max_len: int) -> Tensor | None:
    """Learned embeddings of the positions from 0 on; None if the decoder has none."""
    module = next((children.pop(name) for name in _POSITION_EMBEDDING if name in children), None)
    if module is None:
        return None
    expect(isinstance(module, nn.Embedding), "embeddings of positions are not learned")
    weight: Tensor = module.weight.detach()[int(getattr(module, "offset", 0)) :]
    expect(len(weight) >= max_len, "there are fewer embeddings of positions than positions")
    return weight


def _embedding_scale(decoder: Any, embedding: Any) -> float:
    """The embedding class may scale its output, or the decoder that holds it may."""
    if type(embedding) is nn.Embedding:
        return float(getattr(decoder, "embedding_multiplier", 1.0))
    return embedding_scale(embedding)


def _residual_scale(layer: Any) -> float:
    names = ("residual_multiplier", "residual_scale")
    return float(next((getattr(layer, name) for name in names if hasattr(layer, name)), 1.0))


def _logits_scale(model: Any, text: Any) -> float:
    if (scale := getattr(model, "logit_scale", None)) is not None:
        return float(scale)
    return 1 / float(getattr(text, "logits_scaling", 1.0))


def _layer(layer: Any, probe: CacheProbe, hidden: int, angles: Angles | None) -> LayerParts:
    children = get_children(layer)
    mixer: AttentionLayer | DeltaParts | ShortConvolutionParts
    if _DELTA_NETWORK in children:
        mixer = read_delta_network(children.pop(_DELTA_NETWORK))
        output = mixer.output
    elif _SHORT_CONVOLUTION in children:
        mixer = read_short_convolution(children.pop(_SHORT_CONVOLUTION))
        output = mixer.output
    else:
        mixer = _attention(take_one(children, _ATTENTION), probe, angles)
        output = mixer.parts.output
    expect(output.out_features == hidden, "attention has an unexpected width")
    own_input = read_layer_input(layer, children, hidden)
    mlp = read_mlp(layer, children, hidden)
    places = _NORMS.get(frozenset(children))
    if places is None:
        raise Unrecognised(f"a layer consists of {sorted(children)}")
    parallel = places.parallel or bool(getattr(layer, "use_parallel_residual", False))

    def norm(place: str | None) -> NormParts | None:
        return None if place is None else NormParts.read_row(children[place], hidden)

    is_single = isinstance(mlp, MlpParts)
    expect(is_single or not parallel, "experts are added in an unknown way")
    is_scaled = _residual_scale(layer) != 1
    experts = mlp if isinstance(mlp, ExpertsParts) else None
    scales_inputs = experts is not None and experts.router.scales_inputs
    expect(not (is_scaled and scales_inputs), "experts are scaled twice")
    expect(is_single or not (is_scaled and places.mlp_out), "experts are scaled twice")
    is_known = not isinstance(mlp, ExpertsBesideMlp) or places.mlp_out is not None
    expect(is_known, "experts are added in an unknown way")
    return LayerParts(
        mixer=mixer,
        mlp=mlp,
        attention_norm=norm(places.attention),
        attention_out_norm=norm(places.attention_out),
        mlp_norm=norm(places.mlp),
        mlp_out_norm=norm(places.mlp_out),
        parallel=parallel,
        input=own_input,
        factor=float(getattr(layer, "layer_scalar", 1.0)),
    )


def _attention(attention: Any, probe: CacheProbe, angles: Angles | None) -> AttentionLayer:
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
    return AttentionLayer(attention, whole, parts, tables, rotation, temperatures)


def _whole_rule(rule: AttentionRule, attention: Any) -> AttentionRule:
    """Return the rule with the factor that some models apply to queries before they attend."""
    scale = getattr(attention, "scaling", None)
    return replace(rule, scale=scale) if rule.scale == 1 and isinstance(scale, float) else rule
