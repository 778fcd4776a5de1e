"""Reads causal convolutions from their modules, and the gated short convolutions of LFM2."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from workers.engine.backends.cpu.layers.linear import TiledLinear
from workers.engine.backends.cpu.recognition.parts import (
    expect,
    get_children,
    require_packed,
    take_one,
)


class Taps(NamedTuple):
    """The factors of a convolution's inputs, the oldest first, in float32."""

    weight: Tensor
    """[kernel, channels]"""
    bias: Tensor | None


def read_taps(convolution: Any, channels: int) -> Taps:
    """Raises Unrecognised."""
    expect(type(convolution) is nn.Conv1d, "a convolution is not known")
    weight: Tensor = convolution.weight.detach().float()
    expect(weight.shape[:2] == (channels, 1), "a convolution has an unexpected width")
    bias = None if convolution.bias is None else convolution.bias.detach().float()
    return Taps(weight[:, 0].T.contiguous(), bias)


@dataclass(frozen=True, slots=True)
class ShortConvolutionParts:
    module: nn.Module
    input: TiledLinear
    """Computes the factors of what is convolved, those of the outputs, and what is convolved."""
    output: TiledLinear
    taps: Taps

    @property
    def width(self) -> int:
        """How many numbers of a token are projected."""
        return self.input.out_features


def read_short_convolution(module: Any) -> ShortConvolutionParts:
    """Raises Unrecognised."""
    children = get_children(module)
    first, last = (require_packed(take_one(children, (f"{x}_proj",))) for x in ("in", "out"))
    channels = last.in_features
    taps = read_taps(take_one(children, ("conv",)), channels)
    expect(not children, f"a short convolution has {sorted(children)} too")
    expect(first.out_features == 3 * channels, "a short convolution has an unexpected width")
    return ShortConvolutionParts(module, first, last, taps)
