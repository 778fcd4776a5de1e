"""Reads a decoder's structure from its modules: where norms, products and heads are.

A module's name suggests its role, and its output for test inputs shows which variant it is. The
result is checked at load like everything else, by comparing logits with the model's own.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from workers.engine.backends.base.cache_probe import CacheProbe
from workers.engine.backends.cpu.layers.linear import TiledLinear
from workers.engine.backends.cpu.recognition.layer_inputs import (
    LayerInputsParts,
    read_layer_inputs,
)
from workers.engine.backends.cpu.recognition.layers import (
    AttentionLayer,
    KindOfHeads,
    LayerParts,
    Network,
    get_residual_scale,
    read_layer,
)
from workers.engine.backends.cpu.recognition.parts import (
    NormParts,
    embedding_scale,
    expect,
    get_children,
    take_one,
)
from workers.engine.backends.cpu.recognition.rotary import Angles

ROW_BLOCK = 32

_EMBEDDING = ("embed_tokens", "embed_in", "wte", "word_embeddings", "embeddings")
_POSITION_EMBEDDING = ("wpe", "embed_positions")
_LAYERS = ("layers", "h")
_NORM = (
    "norm", "final_layernorm", "final_layer_norm", "ln_f", "layer_norm", "embedding_norm", "norm_f",
)  # fmt: skip
_ROTARY = ("rotary_emb", "pos_emb")


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
    def networks(self) -> list[Network]:
        """What keeps states, in place of attention or beside it."""
        return [x.network for x in self.layers if x.network is not None]


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
    # States make keys depend on positions too; then the comparison of logits shows a rotation.
    may_have_none = probe.rules.keys() <= probe.positionless or bool(stateful)
    expect(has_places or may_have_none, "there is no rotary_emb")
    inputs = read_layer_inputs(decoder, children, len(embedding.weight))
    expect(not children, "the decoder has other modules")
    hidden = embedding.weight.shape[1]
    expect(isinstance(embedding, nn.Embedding), "embeddings are not an nn.Embedding")
    expect(hidden % ROW_BLOCK == 0, "the hidden size is not a multiple of 32")
    head = model.get_output_embeddings()
    expect(isinstance(head, TiledLinear), "the output layer is not packed")
    angles = None if rotary is None else Angles(rotary, max_len, probe.positionless)
    found = tuple(read_layer(layer, probe, hidden, angles) for layer in layers)
    expect(len({x.parallel for x in found}) == 1, "layers differ in their order")
    text = model.config.get_text_config()
    parts = DecoderParts(
        embedding=embedding.weight,
        position_embedding=learned,
        inputs=inputs,
        embedding_scale=_embedding_scale(decoder, embedding),
        residual_scale=get_residual_scale(layers[0]),
        logits_scale=_logits_scale(model, decoder, text),
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


def _logits_scale(model: Any, decoder: Any, text: Any) -> float:
    scales = (getattr(model, "logit_scale", None), getattr(decoder, "lm_head_multiplier", None))
    if (scale := next((x for x in scales if x is not None), None)) is not None:
        return float(scale)
    return 1 / float(getattr(text, "logits_scaling", 1.0))
