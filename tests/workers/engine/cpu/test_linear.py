import ctypes

import pytest
import torch
from torch import nn

from workers.engine.cpu import library
from workers.engine.cpu.library import load_library, open_library
from workers.engine.cpu.linear import TiledLinear

pytestmark = pytest.mark.skipif(load_library() is None, reason="needs AVX512 and a C compiler")


@pytest.fixture(params=["tiles", "vectors", "plain"])
def kernels(request: pytest.FixtureRequest) -> ctypes.CDLL:
    """The library for this CPU, and those for CPUs without AMX and without AVX512-BF16."""
    features = library._cpu_features()
    if request.param == "tiles" and not features.issuperset(library._TILES):
        pytest.skip("needs AMX")
    if request.param == "vectors" and "avx512_bf16" not in features:
        pytest.skip("needs AVX512-BF16")
    if request.param != "tiles":
        features -= set(library._TILES)
    if request.param == "plain":
        features -= set(library._FASTER)
    flags = library.compiler_flags(features)
    assert flags is not None
    return open_library(flags)


@pytest.mark.parametrize("rows", [1, 5, 16, 17, 33, 80])
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_the_product_is_the_same(kernels: ctypes.CDLL, rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(96, 160, bias=bias, dtype=torch.bfloat16)
    hidden = torch.randn(1, rows, 96, dtype=torch.bfloat16)
    exact = torch.nn.functional.linear(
        hidden.double(), linear.weight.double(), linear.bias.double() if bias else None
    )
    product = TiledLinear(linear, kernels)(hidden)
    assert product.dtype == torch.bfloat16
    torch.testing.assert_close(product.double(), exact, rtol=2**-8, atol=1e-3)


def test_no_rows_give_no_rows(kernels: ctypes.CDLL) -> None:
    layer = TiledLinear(nn.Linear(32, 64, dtype=torch.bfloat16), kernels)
    assert layer(torch.empty(1, 0, 32, dtype=torch.bfloat16)).shape == (1, 0, 64)


@pytest.mark.parametrize(("inputs", "outputs"), [(48, 64), (64, 48)])
def test_other_shapes_are_left_to_others(inputs: int, outputs: int) -> None:
    assert TiledLinear.pack(nn.Linear(inputs, outputs, dtype=torch.bfloat16)) is None
