"""Products in 8 bits: exact if nothing is rounded, otherwise within the error of rounding."""

import ctypes

import pytest
import torch
from torch import Tensor, nn

from tests.representatives import stand_for_all
from tests.workers.engine.backends.cpu.builds import BUILDS, build
from workers.engine.backends.cpu.layers.library import why_no_kernels
from workers.engine.backends.cpu.layers.linear import Int8Linear
from workers.engine.backends.cpu.layers.packed_linear import pack_linears

pytestmark = pytest.mark.skipif(why_no_kernels() is not None, reason=str(why_no_kernels()))

GROUP = 64
SHAPES = [(32, 32), (64, 96), (96, 160), (160, 64), (576, 192), (1536, 32)]
ROWS = [1, 2, 8, 9, 31, 33, 80]


@pytest.fixture(params=BUILDS)
def kernels(request: pytest.FixtureRequest) -> ctypes.CDLL:
    return build(request.param)


def linear_of(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    outputs, inputs = weight.shape
    linear = nn.Linear(inputs, outputs, bias=bias is not None, dtype=torch.bfloat16)
    with torch.no_grad():
        linear.weight.copy_(weight)
        if bias is not None:
            linear.bias.copy_(bias)
    return linear


def whole_numbers(rows: int, columns: int) -> Tensor:
    """Bytes. Each group has one of the largest magnitude, so that none is rounded."""
    numbers = torch.randint(-127, 128, (rows, columns))
    numbers[:, ::32] = torch.where(torch.rand(rows, -(-columns // 32)) < 0.5, -127, 127)
    return numbers


@pytest.mark.parametrize("rows", stand_for_all([1, 9, 33], ROWS))
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
@torch.inference_mode()
def test_the_product_of_whole_numbers_is_exact(
    kernels: ctypes.CDLL, inputs: int, outputs: int, rows: int
) -> None:
    torch.manual_seed(inputs + rows)
    weight, hidden = whole_numbers(outputs, inputs), whole_numbers(rows, inputs)
    bias = torch.randint(-99, 99, (outputs,))
    exact = hidden @ weight.T + bias
    assert exact.abs().max() < 2**24  # float32 holds it
    product = Int8Linear(linear_of(weight, bias), kernels)(hidden.to(torch.bfloat16))
    assert torch.equal(product, exact.to(torch.bfloat16))


@pytest.mark.parametrize("sign", [-1, 1])
@torch.inference_mode()
def test_the_largest_sums_do_not_overflow(kernels: ctypes.CDLL, sign: int) -> None:
    weight, hidden = torch.full((32, 512), 127), torch.full((9, 512), sign * 127)
    product = Int8Linear(linear_of(weight), kernels)(hidden.to(torch.bfloat16))
    assert torch.equal(product, (hidden @ weight.T).to(torch.bfloat16))


@pytest.mark.parametrize("rows", [1, 33])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
@torch.inference_mode()
def test_no_more_is_lost_than_half_a_step_of_each_number(
    kernels: ctypes.CDLL, inputs: int, outputs: int, rows: int
) -> None:
    """A few inputs are a hundred times as large as the others, as in language models."""
    torch.manual_seed(0)
    linear = linear_of(torch.randn(outputs, inputs), torch.randn(outputs))
    hidden = torch.randn(rows, inputs)
    hidden[:, :: inputs // 4] *= 100
    hidden = hidden.to(torch.bfloat16)
    wide, weight = hidden.double(), linear.weight.double()
    exact = nn.functional.linear(wide, weight, linear.bias.double())

    weight_step = weight.abs().amax(dim=1) / 127
    allowed = wide.abs().sum(dim=1, keepdim=True) * weight_step / 2
    for begin in range(0, inputs, GROUP):
        part = slice(begin, begin + GROUP)
        step = wide[:, part].abs().amax(dim=1, keepdim=True) / 127
        rounded = weight[:, part].abs() + weight_step[:, None] / 2
        allowed += step / 2 * rounded.sum(dim=1)
    error = (Int8Linear(linear, kernels)(hidden).double() - exact).abs()
    assert bool((error <= 1.001 * allowed + exact.abs() * 2**-8).all())
    assert error.norm() < 0.03 * exact.norm()


@torch.inference_mode()
def test_a_row_is_the_same_alone_and_among_others(kernels: ctypes.CDLL) -> None:
    torch.manual_seed(0)
    layer = Int8Linear(linear_of(torch.randn(96, 224)), kernels)
    hidden = torch.randn(75, 224, dtype=torch.bfloat16)
    alone = torch.cat([layer(row[None]) for row in hidden])
    for rows in range(1, len(hidden) + 1):
        assert torch.equal(layer(hidden[:rows]), alone[:rows])


@pytest.mark.parametrize("strange", [float("nan"), float("inf"), -float("inf")])
@torch.inference_mode()
def test_what_is_not_finite_shows_in_its_row_alone(kernels: ctypes.CDLL, strange: float) -> None:
    layer = Int8Linear(linear_of(torch.randn(32, 96)), kernels)
    hidden = torch.randn(5, 96, dtype=torch.bfloat16)
    hidden[3, 70] = strange
    product = layer(hidden)
    assert product.isnan().all(dim=1).tolist() == [False, False, False, True, False]
    assert bool(product[[0, 1, 2, 4]].isfinite().all())


@torch.inference_mode()
def test_nothing_but_zeros_gives_the_bias(kernels: ctypes.CDLL) -> None:
    bias = torch.arange(32)
    layer = Int8Linear(linear_of(torch.zeros(32, 96), bias), kernels)
    hidden = torch.stack([torch.zeros(96), torch.full((96,), 1e-38), torch.ones(96)])
    product = layer(hidden.to(torch.bfloat16))
    assert torch.equal(product, bias.expand(3, -1).to(torch.bfloat16))


def test_shapes_that_do_not_fit_keep_their_dtype() -> None:
    model = nn.Sequential(*(nn.Linear(i, 64, dtype=torch.bfloat16) for i in (64, 48)))
    pack_linears(model, "int8")
    assert isinstance(model[0], Int8Linear)
    assert not isinstance(model[1], Int8Linear)
