"""Products with weights in 4 bits: exact for the weights that packing makes, which are near."""

import ctypes

import pytest
import torch
from torch import Tensor

from tests.representatives import stand_for_all
from tests.workers.engine.backends.cpu.builds import BUILDS, build
from tests.workers.engine.backends.cpu.layers.test_int8 import (
    ROWS,
    SHAPES,
    linear_of,
    whole_numbers,
)
from workers.engine.backends.cpu.layers.library import why_no_kernels
from workers.engine.backends.cpu.layers.linear import Int4Linear, _round_to_nibbles

pytestmark = pytest.mark.skipif(why_no_kernels() is not None, reason=str(why_no_kernels()))


@pytest.fixture(params=BUILDS)
def kernels(request: pytest.FixtureRequest) -> ctypes.CDLL:
    return build(request.param)


def rounded(weight: Tensor) -> Tensor:
    """What 4 bits make of ``weight`` [out, in], in float64."""
    outputs, inputs = weight.shape
    groups = weight.to(torch.bfloat16).float().view(outputs, inputs // 32, 32)
    steps, scales, minima, values = (x.double() for x in _round_to_nibbles(groups))
    numbers = scales[..., None] * values - 16 * minima[..., None]
    return (numbers * steps[:, None, None]).view(outputs, inputs)


@pytest.mark.parametrize("rows", stand_for_all([1, 9, 33], ROWS))
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
@torch.inference_mode()
def test_the_product_is_that_of_the_rounded_weight(
    kernels: ctypes.CDLL, inputs: int, outputs: int, rows: int
) -> None:
    torch.manual_seed(inputs + rows)
    weight, hidden = torch.randn(outputs, inputs), whole_numbers(rows, inputs)
    bias = torch.randint(-99, 99, (outputs,))
    exact = hidden.double() @ rounded(weight).T + bias
    product = Int4Linear(linear_of(weight, bias), kernels)(hidden.to(torch.bfloat16))
    torch.testing.assert_close(product.double(), exact, rtol=2**-8, atol=1e-3)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("value", [-127, 127])
@torch.inference_mode()
def test_the_largest_sums_do_not_overflow(kernels: ctypes.CDLL, value: int, sign: int) -> None:
    weight, hidden = torch.full((32, 512), value), torch.full((9, 512), sign * 127)
    product = Int4Linear(linear_of(weight), kernels)(hidden.to(torch.bfloat16))
    exact = hidden.double() @ weight.double().T
    torch.testing.assert_close(product.double(), exact, rtol=0.005, atol=0)


@torch.inference_mode()
def test_a_weight_on_a_grid_of_16_keeps_its_values() -> None:
    """As those of a GGUF file in Q4_0: steps of a group's own, from 8 below to 7 above zero."""
    torch.manual_seed(0)
    grid = torch.randint(-8, 8, (64, 5, 32))
    grid[..., 0], grid[..., 1] = -8, 7
    steps = 2 ** torch.randint(-3, 1, (64, 5, 1)).float()
    weight = (grid * steps).view(64, -1)
    assert (rounded(weight) - weight).norm() < 0.01 * weight.norm()


@pytest.mark.parametrize("spread", [1.5, 2.5, 4])
@pytest.mark.parametrize("offset", [0, 5])
@torch.inference_mode()
def test_so_does_one_that_leaves_some_of_its_16_values_unused(spread: float, offset: int) -> None:
    """As those of GPTQ, whose groups of 128 have one range, and of Q4_0, which goes to one side."""
    torch.manual_seed(0)
    grid = (torch.randn(64, 5, 32) * spread).round().clamp(-8, 7) + offset
    steps = torch.rand(64, 5, 1) + 0.1
    weight = (grid * steps).view(64, -1)
    assert (rounded(weight) - weight).norm() < 0.02 * weight.norm()


@torch.inference_mode()
def test_what_is_lost_of_random_weights() -> None:
    torch.manual_seed(0)
    weight = torch.randn(64, 512)
    assert (rounded(weight) - weight).norm() < 0.085 * weight.norm()


@torch.inference_mode()
def test_a_row_is_the_same_alone_and_among_others(kernels: ctypes.CDLL) -> None:
    torch.manual_seed(0)
    layer = Int4Linear(linear_of(torch.randn(96, 224)), kernels)
    hidden = torch.randn(40, 224, dtype=torch.bfloat16)
    alone = torch.cat([layer(row[None]) for row in hidden])
    for rows in range(1, len(hidden) + 1):
        assert torch.equal(layer(hidden[:rows]), alone[:rows])


@pytest.mark.parametrize("strange", [float("nan"), float("inf"), -float("inf")])
@torch.inference_mode()
def test_what_is_not_finite_shows_in_its_row_alone(kernels: ctypes.CDLL, strange: float) -> None:
    layer = Int4Linear(linear_of(torch.randn(32, 96)), kernels)
    hidden = torch.randn(5, 96, dtype=torch.bfloat16)
    hidden[3, 70] = strange
    assert layer(hidden).isnan().all(dim=1).tolist() == [False, False, False, True, False]


@torch.inference_mode()
def test_nothing_but_zeros_gives_the_bias(kernels: ctypes.CDLL) -> None:
    bias = torch.arange(32)
    product = Int4Linear(linear_of(torch.zeros(32, 96), bias), kernels)(
        torch.ones(3, 96, dtype=torch.bfloat16)
    )
    assert torch.equal(product, bias.expand(3, -1).to(torch.bfloat16))
