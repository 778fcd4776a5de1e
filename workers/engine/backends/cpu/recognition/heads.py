"""Reads how attention layers make heads: by projections of their input, or from latents."""

from dataclasses import dataclass
from typing import Any

from workers.engine.backends.cpu.layers.linear import TiledLinear
from workers.engine.backends.cpu.recognition.parts import (
    NormParts,
    expect,
    get_children,
    require_packed,
    take_one,
)
from workers.engine.core.layer_shape import LayerShape

MAX_HEAD_DIM = 512
HEAD_MULTIPLE = 8
NORM_MULTIPLE = 16

_FUSED = ("qkv_proj", "query_key_value", "c_attn")
_OUTPUT = ("o_proj", "dense", "out_proj", "c_proj")
_LAST_NORMS = ("query_layernorm", "key_layernorm")
"""Norms of rotated heads."""
_LAST_NORM_OF_BOTH = "qk_norm"
"""One such norm of queries and of keys."""
_QUERY_NORM = ("q_norm", "q_layernorm", _LAST_NORMS[0])
_KEY_NORM = ("k_norm", "k_layernorm", _LAST_NORMS[1])
_VALUE_NORM = ("v_norm",)
_LATENT = "kv_a_proj_with_mqa"


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of all layers, and where they lie in a projected row, as in kernels/model.h."""

    heads: int
    kv_heads: int
    dim: int
    value_dim: int
    width: int
    head_step: int
    query_step: int
    kv_step: int
    key_begin: int
    value_begin: int
    latent_begin: int = 0
    query_latent_begin: int = 0
    widest_latent: int = 0


@dataclass(frozen=True, slots=True)
class LatentParts:
    """The layers around the latent of keys and values, and before the latent of queries if there
    is one."""

    down: TiledLinear
    norm: NormParts
    up: TiledLinear
    query: tuple[TiledLinear, NormParts] | None


HeadNorm = tuple[NormParts, int] | None
"""A norm of queries or keys, and how many numbers it takes together."""


@dataclass(frozen=True, slots=True)
class AttentionParts:
    heads: Heads
    projections: tuple[TiledLinear, ...]
    """For queries, keys and values, without those for values that are keys before their norm; one
    for all of them; or one for queries, with latents or keys and values of another layer."""
    output: TiledLinear
    norms: tuple[HeadNorm, HeadNorm, HeadNorm]
    """Of queries, of keys and of values."""
    latents: LatentParts | None
    stores: bool = True
    """Whether the layer has keys and values of its own."""
    norms_last: bool = False
    """Whether queries and keys are normalized after they are rotated."""
    clip: float = 0.0
    """The largest magnitude of queries, keys and values as they are projected; 0 if any may be."""

    @property
    def is_linear(self) -> bool:
        """Whether keys and values are what layers without biases compute, side by side."""
        return len(self.projections) == 3 and not any(x.struct.bias for x in self.projections)

    @property
    def rotated(self) -> int:
        """How many numbers of a head its rotation may read."""
        if self.latents is None:
            return self.heads.dim
        return self.latents.down.out_features - self.latents.up.in_features


def read_attention(attention: Any, shape: LayerShape) -> AttentionParts:
    """``shape`` is what the layer stores. Raises Unrecognised."""
    children = get_children(attention)
    if shape.kept_by is not None:
        parts = _read_queries(children, shape)
    else:
        read = _read_latents if _LATENT in children else _read_projections
        parts = read(attention, children)
    expect(not children, f"attention has {sorted(children)} too")
    return parts


def _expect_size(dim: int) -> None:
    expect(0 < dim <= MAX_HEAD_DIM and dim % HEAD_MULTIPLE == 0, f"heads have {dim} numbers")


def _read_queries(children: dict[str, Any], shape: LayerShape) -> AttentionParts:
    """Queries alone: keys and values are those of another layer."""
    dim, kv_heads = shape.key_dim, shape.num_kv_heads
    _expect_size(dim)
    expect(shape.value_dim == dim, "values have an unexpected width")
    output = require_packed(take_one(children, _OUTPUT))
    query = require_packed(take_one(children, ("q_proj",)))
    width = query.out_features
    num_heads = width // dim
    expect(width == output.in_features == num_heads * dim, "queries have an unexpected width")
    expect(num_heads % kv_heads == 0, "heads share no keys")
    step = num_heads // kv_heads * dim
    heads = Heads(num_heads, kv_heads, dim, dim, width, dim, step, dim, 0, 0)
    norms = (_head_norm(children, _QUERY_NORM, num_heads, dim), None, None)
    return AttentionParts(heads, (query,), output, norms, None, stores=False)


def _read_projections(attention: Any, children: dict[str, Any]) -> AttentionParts:
    sizes = (getattr(attention, name, None) for name in ("head_dim", "head_size"))
    dim: int = next(filter(None, sizes), 0)
    _expect_size(dim)
    output = require_packed(take_one(children, _OUTPUT))
    num_heads = output.in_features // dim
    projections: tuple[TiledLinear, ...]
    head_step = dim
    if "q_proj" in children:
        names = (f"{x}_proj" for x in "qkv" if x != "v" or "v_proj" in children)
        projections = tuple(require_packed(take_one(children, (name,))) for name in names)
        kv_heads = projections[1].out_features // dim
        if projections[0].out_features == 2 * num_heads * dim:  # with gates of the outputs
            head_step = 2 * dim
        has_queries = projections[0].out_features == num_heads * head_step
        expect(has_queries, "queries have an unexpected width")
        expect(projections[-1].out_features == kv_heads * dim, "values have an unexpected width")
        side_by_side = False
    else:
        whole = getattr(attention, "multi_query", True)
        side_by_side = "query_key_value" in children or not whole
        projections = (require_packed(take_one(children, _FUSED)),)
        kv_heads = (projections[0].out_features // dim - num_heads) // 2
    expect(kv_heads > 0 and num_heads % kv_heads == 0, "heads share no keys")
    group, width = num_heads // kv_heads, num_heads * head_step + 2 * kv_heads * dim
    if side_by_side:  # of each key head: its queries, then key and value
        step = (group + 2) * dim
        places = (step, step, group * dim, (group + 1) * dim)
    else:
        first = num_heads * head_step
        places = (group * head_step, dim, first, first + kv_heads * dim)
    heads = Heads(num_heads, kv_heads, dim, dim, width, head_step, *places)
    if (both := children.pop(_LAST_NORM_OF_BOTH, None)) is not None:
        children |= dict.fromkeys(_LAST_NORMS, both)
    norms_last = children.keys() >= set(_LAST_NORMS)
    copied = kv_heads * dim if len(projections) == 2 else 0
    projected = copied + sum(x.out_features for x in projections)
    expect(width == projected, "heads have other widths")
    norms = (
        _head_norm(children, _QUERY_NORM, num_heads, dim),
        _head_norm(children, _KEY_NORM, kv_heads, dim),
        _head_norm(children, _VALUE_NORM, kv_heads, dim),
    )
    expect(norms[2] is None or norms[2][1] == dim, "values are normalized together")
    are_apart = side_by_side or head_step > dim
    are_apart |= norms_last
    expect(not (are_apart and any(n and n[1] != dim for n in norms)), "heads lie apart")
    expect(not norms_last or norms[2] is None, "heads are normalized in an unknown order")
    clip = float(getattr(getattr(attention, "config", None), "clip_qkv", None) or 0)
    is_plain = len(projections) > 1 and not any(norms)
    expect(clip == 0 or is_plain, "heads are clipped in an unknown way")
    return AttentionParts(heads, projections, output, norms, None, norms_last=norms_last, clip=clip)


def _head_norm(
    children: dict[str, Any], names: tuple[str, ...], num_heads: int, dim: int
) -> HeadNorm:
    module = next((children.pop(name) for name in names if name in children), None)
    parts = module and NormParts.read_heads(module, num_heads, dim)
    expect(module is None or parts is not None, "a norm of heads is not known")
    fits = parts is None or parts[1] % NORM_MULTIPLE == 0
    expect(fits, "norms of heads take no multiple of 16 numbers")
    return parts


def _read_latents(attention: Any, children: dict[str, Any]) -> AttentionParts:
    """Multi-head latent attention: each head has a key and a value of its own, of other sizes."""
    dim, value_dim = int(attention.qk_head_dim), int(attention.v_head_dim)
    _expect_size(dim)
    _expect_size(value_dim)
    output = require_packed(take_one(children, _OUTPUT))
    num_heads = output.in_features // value_dim
    down, up = (require_packed(take_one(children, (name,))) for name in (_LATENT, "kv_b_proj"))
    norm = NormParts.read_row(take_one(children, ("kv_a_layernorm",)), up.in_features)
    query = None
    if "q_a_proj" in children:
        query_down, projection = (require_packed(children.pop(f"q_{x}_proj")) for x in "ab")
        rank = projection.in_features
        expect(query_down.out_features == rank, "latents of queries have an unexpected width")
        query = query_down, NormParts.read_row(take_one(children, ("q_a_layernorm",)), rank)
    else:
        projection = require_packed(take_one(children, ("q_proj",)))
    turned = down.out_features - up.in_features
    plain, first = dim - turned, num_heads * dim
    step = plain + value_dim
    expect(
        turned > 0 and plain > 0 and plain % HEAD_MULTIPLE == 0, "keys have no part of their own"
    )
    expect(projection.out_features == first, "queries have an unexpected width")
    expect(up.out_features == num_heads * step, "keys and values have an unexpected width")
    expect(output.in_features == num_heads * value_dim, "values have an unexpected width")
    latent_begin = first + num_heads * step
    query_latent_begin = latent_begin + down.out_features
    query_rank = query[0].out_features if query else 0
    heads = Heads(
        heads=num_heads,
        kv_heads=num_heads,
        dim=dim,
        value_dim=value_dim,
        width=query_latent_begin + query_rank,
        head_step=dim,
        query_step=dim,
        kv_step=step,
        key_begin=first,
        value_begin=first + plain,
        latent_begin=latent_begin,
        query_latent_begin=query_latent_begin,
        widest_latent=max(up.in_features, query_rank),
    )
    return AttentionParts(
        heads, (projection,), output, (None, None, None), LatentParts(down, norm, up, query)
    )
