"""The parts that a model's modules consist of, and what a norm of them computes, inferred from its
output for test inputs."""

import copy
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, rms_norm

from workers.engine.backends.cpu.layers.linear import TiledLinear

_CLOSE = 1e-3
_DEFAULT_EPSILON = 1e-5
_TRIED_EMBEDDINGS = 64


class Unrecognised(Exception):  # noqa: N818 - not a fault, but an answer
    """The C forward does not support the model's structure."""


def expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Unrecognised(otherwise)


def get_children(module: nn.Module) -> dict[str, Any]:
    """Return the child modules, without dropout and identities."""
    idle = (nn.Dropout, nn.Identity)
    return {name: x for name, x in module.named_children() if not isinstance(x, idle)}


def take_one(children: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Remove and return the child that has any of these names."""
    for name in names:
        if name in children:
            return children.pop(name)
    raise Unrecognised(f"there is no {names[0]}")


def require_packed(module: Any) -> TiledLinear:
    expect(isinstance(module, TiledLinear), "a linear layer is not packed")
    packed: TiledLinear = module
    return packed


@dataclass(frozen=True, slots=True)
class NormParts:
    """A norm as kernels/model.h describes it; weight and bias are in float32."""

    weight: Tensor
    bias: Tensor | None
    epsilon: float
    centers: bool

    @classmethod
    @torch.inference_mode()
    def read(cls, module: Any, size: int) -> Self | None:
        """Return what ``module`` does with its last dimension of ``size`` numbers; None if that is
        not known. Norms of several heads may have weights [heads, size]."""
        parameters = dict(module.named_parameters())
        if not parameters.keys() <= {"weight", "bias"}:
            return None
        weight, bias = (_float(parameters.get(name)) for name in ("weight", "bias"))
        shape = (1, size) if weight is None else (1, *weight.shape)
        draw = torch.Generator().manual_seed(3)
        x = torch.randn(shape, generator=draw) * 2 + 1
        own = copy.deepcopy(module).float()
        try:
            answer = own(x)
        except Exception:  # noqa: BLE001 - it takes something else
            return None
        ones = torch.ones(shape[1:])
        weights = [ones] if weight is None else [weight, 1 + weight]
        epsilons = [getattr(module, name, None) for name in ("variance_epsilon", "eps", "epsilon")]
        epsilon = next((e for e in epsilons if isinstance(e, float)), _DEFAULT_EPSILON)
        for centers in (False, True):
            plain = (
                layer_norm(x, (size,), eps=epsilon)
                if centers
                else rms_norm(x, (size,), eps=epsilon)
            )
            for w in weights:
                expected = plain * w if bias is None else plain * w + bias
                if torch.allclose(answer, expected, rtol=_CLOSE, atol=_CLOSE):
                    return cls(w, bias, epsilon, centers)
        return None

    @classmethod
    def read_row(cls, module: Any, size: int) -> Self:
        """Return a norm of whole rows of ``size`` numbers. Raises Unrecognised."""
        parts = cls.read(module, size)
        if parts is None or parts.weight.shape != (size,):
            raise Unrecognised(f"{type(module).__name__} is not a known norm")
        return parts

    @classmethod
    def read_heads(cls, module: Any, heads: int, head_dim: int) -> "tuple[Self, int] | None":
        """Return a norm of queries or keys with weights for all heads, one after the other, and how
        many numbers it normalizes together."""
        each = getattr(module, "norms", None)
        if isinstance(each, nn.ModuleList):  # a module for each head
            norms = [cls.read(norm, head_dim) for norm in each]
            first = norms[0]
            if len(norms) != heads or first is None or any(x is None for x in norms):
                return None
            weight = torch.cat([x.weight for x in norms if x is not None])
            biases = [x.bias for x in norms if x is not None and x.bias is not None]
            bias = torch.cat(biases) if len(biases) == heads else None
            return cls(weight, bias, first.epsilon, first.centers), head_dim
        own: Tensor | None = getattr(module, "weight", None)
        is_whole = own is not None and own.shape == (heads * head_dim,)
        span = heads * head_dim if is_whole else head_dim
        parts = cls.read(module, span)
        if parts is None or parts.weight.numel() not in (head_dim, heads * head_dim):
            return None
        copies = heads * head_dim // parts.weight.numel()
        bias = None if parts.bias is None else parts.bias.flatten().repeat(copies)
        all_heads = cls(parts.weight.flatten().repeat(copies), bias, parts.epsilon, parts.centers)
        return all_heads, span


def _float(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.detach().float()


def embedding_scale(embedding: Any) -> float:
    """Return the factor by which an embedding's class scales its output. Raises Unrecognised."""
    rows = embedding.weight[:_TRIED_EMBEDDINGS].detach().float()  # the one of padding is zero
    token, place = divmod(int(rows.abs().argmax()), rows.shape[1])
    scale = getattr(embedding, "embed_scale", None)
    if scale is None:
        raise Unrecognised(f"{type(embedding).__name__} is not a known embedding")
    factor = float(torch.as_tensor(scale).to(embedding.weight.dtype))
    with torch.inference_mode():
        answer = float(embedding(torch.tensor([token]))[0, place].float() / rows[token, place])
    expect(abs(answer - factor) < 0.01 * abs(factor), "embeddings do more than scale")
    return factor
