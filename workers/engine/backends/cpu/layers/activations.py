"""The activation functions of MLPs and experts; a module's function is identified by its output for
test inputs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, relu, silu, softplus
from transformers.activations import ACT2FN


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _gelu_tanh(x: Tensor) -> Tensor:
    return gelu(x, approximate="tanh")


def _square_relu(x: Tensor) -> Tensor:
    return relu(x).square()


_ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    silu,
    gelu,
    _gelu_tanh,
    relu,
    _square_relu,
    _quick_gelu,
)
"""In the order of kernels/model.h; kernels/activations.h computes them in C."""

CLAMPED_SWIGLU = len(_ACTIVATIONS)
"""The activation of gpt-oss, which takes both products of an MLP."""


XIELU = CLAMPED_SWIGLU + 1
"""The activation of Apertus, which has parameters: see :func:`read_bends`."""


def read_bends(function: Any) -> tuple[float, float, float] | None:
    """Return the factors of xIELU above zero and below, and its slope at zero; None for another
    function."""
    if not all(hasattr(function, name) for name in ("alpha_p", "alpha_n", "beta", "eps")):
        return None
    above, below = (softplus(x.detach().float()) for x in (function.alpha_p, function.alpha_n))
    slope = float(function.beta)
    return float(above), slope + float(below), slope


def activate(activation: int, limit: float, gate: Tensor, up: Tensor) -> Tensor:
    """Return the activation of an MLP's two products; ``limit`` applies to the clamped ones."""
    if activation != CLAMPED_SWIGLU:
        return _ACTIVATIONS[activation](gate) * up
    return (up.clamp(-limit, limit) + 1) * _quick_gelu(gate.clamp(max=limit))


def activate_alone(activation: int, x: Tensor) -> Tensor:
    """Return the activation of an MLP without a gate, which is not the clamped one."""
    return _ACTIVATIONS[activation](x)


def is_silu(name: Any) -> bool:
    """Return whether transformers' ``name`` of an activation means SiLU."""
    return name in ACT2FN and recognise_activation(ACT2FN[name]) == _ACTIVATIONS.index(silu)


def recognise_activation(function: Any) -> int | None:
    """Return the number in kernels/model.h of an activation, or None."""
    x = torch.linspace(-9, 9, 128)
    try:
        answer = function(x)
    except Exception:  # noqa: BLE001 - it takes something else
        return None
    for i, known in enumerate(_ACTIVATIONS):
        if torch.allclose(answer, known(x), rtol=1e-5, atol=1e-6):
            return i
    return None
