"""Reads the inputs that layers have beside the residual (Gemma 4): per-layer embeddings."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from workers.engine.backends.cpu.layers.activations import recognise_activation
from workers.engine.backends.cpu.layers.linear import TiledLinear
from workers.engine.backends.cpu.recognition.parts import (
    NormParts,
    Unrecognised,
    embedding_scale,
    expect,
    require_packed,
    take_one,
)

_EMBEDDING, _PROJECTION = "embed_tokens_per_layer", "per_layer_model_projection"
_SCALES = ("per_layer_model_projection_scale", "per_layer_input_scale")
_NORM = "per_layer_projection_norm"
_GATE, _OUTPUT = "per_layer_input_gate", "per_layer_projection"
_OUTPUT_NORM = "post_per_layer_input_norm"
_MULTIPLE = 16


@dataclass(frozen=True, slots=True)
class LayerInputsParts:
    """How the inputs of all layers are made, as in kernels/model.h."""

    embedding: Tensor
    """[vocabulary, layers * size]"""
    projection: TiledLinear
    norm: NormParts
    size: int
    embedding_scale: float
    projection_scale: float
    scale: float


@dataclass(frozen=True, slots=True)
class LayerInputParts:
    """The branch of a layer that takes its input."""

    gate: TiledLinear
    projection: TiledLinear
    norm: NormParts
    activation: int


def read_layer_inputs(
    decoder: Any, children: dict[str, Any], vocabulary: int
) -> LayerInputsParts | None:
    """Return what ``decoder`` makes its layers' inputs with, removed from its ``children``; None if
    they have none. Raises Unrecognised."""
    if _EMBEDDING not in children:
        return None
    embedding = children.pop(_EMBEDDING)
    expect(isinstance(embedding, nn.Embedding), "embeddings are not an nn.Embedding")
    projection = require_packed(take_one(children, (_PROJECTION,)))
    size = int(decoder.hidden_size_per_layer_input)
    width = projection.out_features
    expect(size % _MULTIPLE == 0, "inputs of layers take no multiple of 16 numbers")
    expect(width == len(decoder.layers) * size, "inputs of layers have an unexpected width")
    expect(len(embedding.weight) >= vocabulary, "some tokens have no embeddings for layers")
    expect(embedding.weight.shape[1] == width, "embeddings for layers have an unexpected width")
    is_known = all(hasattr(decoder, name) for name in _SCALES)
    expect(is_known, "inputs of layers are made in another way")
    projection_scale, scale = (float(getattr(decoder, name)) for name in _SCALES)
    return LayerInputsParts(
        embedding=embedding.weight,
        projection=projection,
        norm=NormParts.read_row(take_one(children, (_NORM,)), size),
        size=size,
        embedding_scale=embedding_scale(embedding),
        projection_scale=projection_scale,
        scale=scale,
    )


def read_layer_input(layer: Any, children: dict[str, Any], hidden: int) -> LayerInputParts | None:
    """Return the branch of a layer's own input, removed from its ``children``; None if there is
    none. Raises Unrecognised."""
    if _GATE not in children:
        return None
    gate, projection = (require_packed(take_one(children, (x,))) for x in (_GATE, _OUTPUT))
    activation = recognise_activation(take_one(children, ("act_fn",)))
    if activation is None:
        raise Unrecognised("an activation is not known")
    expect(gate.in_features == projection.out_features == hidden, "a layer's input is uneven")
    expect(gate.out_features == projection.in_features, "a layer's input is uneven")
    norm = NormParts.read_row(take_one(children, (_OUTPUT_NORM,)), hidden)
    return LayerInputParts(gate, projection, norm, activation)
