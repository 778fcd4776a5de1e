import ctypes
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from tests.workers.engine.backends.cpu.builds import BUILDS, build
from workers.engine.backends.cpu.layers.library import load_library
from workers.engine.backends.cpu.layers.linear import TiledLinear

pytestmark = pytest.mark.skipif(load_library() is None, reason="needs the C kernels")


@pytest.fixture(params=BUILDS)
def kernels(request: pytest.FixtureRequest) -> ctypes.CDLL:
    return build(request.param)


@pytest.fixture
def num_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("rows", [1, 5, 16, 17, 33, 80])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [160, 211])
@torch.inference_mode()
def test_the_product_is_the_same(kernels: ctypes.CDLL, rows: int, bias: bool, outputs: int) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(96, outputs, bias=bias, dtype=torch.bfloat16)
    hidden = torch.randn(1, rows, 96, dtype=torch.bfloat16)
    exact = torch.nn.functional.linear(
        hidden.double(), linear.weight.double(), linear.bias.double() if bias else None
    )
    product = TiledLinear(linear, kernels)(hidden)
    assert product.dtype == torch.bfloat16
    torch.testing.assert_close(product.double(), exact, rtol=2**-8, atol=1e-3)


@pytest.mark.parametrize("outputs", [224, 203])
@torch.inference_mode()
def test_a_row_has_the_same_bits_alone_and_among_others(kernels: ctypes.CDLL, outputs: int) -> None:
    """Outputs that are no multiple of what one row takes at once."""
    torch.manual_seed(0)
    layer = TiledLinear(nn.Linear(96, outputs, dtype=torch.bfloat16), kernels)
    hidden = torch.randn(75, 96, dtype=torch.bfloat16)
    alone = torch.cat([layer(row[None]) for row in hidden])
    for rows in range(1, len(hidden) + 1):
        assert torch.equal(layer(hidden[:rows]), alone[:rows])


@pytest.mark.parametrize("threads", [1, 2, 6])
@pytest.mark.parametrize("inputs", [32, 608, 1184])
@torch.inference_mode()
def test_a_row_has_the_same_bits_among_many(
    kernels: ctypes.CDLL, inputs: int, threads: int, num_threads: Callable[[int], None]
) -> None:
    """Inputs that make one, two and three chunks of a product by tiles, and rows that are stored by
    tiles, make a second panel, and are divided among threads."""
    torch.manual_seed(0)
    num_threads(threads)
    layer = TiledLinear(nn.Linear(inputs, 96, dtype=torch.bfloat16), kernels)
    hidden = torch.randn(300, inputs, dtype=torch.bfloat16)
    alone = torch.cat([layer(hidden[i : i + 20]) for i in range(0, len(hidden), 20)])
    for rows in (33, 48, 49, 128, 256, 257, 300):
        assert torch.equal(layer(hidden[:rows]), alone[:rows]), rows


def test_no_rows_give_no_rows(kernels: ctypes.CDLL) -> None:
    layer = TiledLinear(nn.Linear(32, 64, dtype=torch.bfloat16), kernels)
    assert layer(torch.empty(1, 0, 32, dtype=torch.bfloat16)).shape == (1, 0, 64)


@pytest.mark.parametrize(("inputs", "outputs"), [(48, 64), (64, 48)])
def test_other_shapes_are_left_to_others(inputs: int, outputs: int) -> None:
    assert TiledLinear.pack(nn.Linear(inputs, outputs, dtype=torch.bfloat16)) is None


def test_an_output_layer_may_have_any_number_of_outputs() -> None:
    head = nn.Linear(64, 257, dtype=torch.bfloat16)
    assert TiledLinear.pack(head, is_head=True) is not None
