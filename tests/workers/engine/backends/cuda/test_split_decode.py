"""The decode kernel, interpreted against torch operations over gathered pages, and compiled for
every GPU that it is meant for."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="triton has no wheel for this machine")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.workers.engine.backends.cuda.without_gpu import interpreted
from workers.engine.backends.cuda import split_decode
from workers.engine.core.layer_shape import LayerShape, Visible

ROOM = 99 * 1024
"""Bytes of shared memory that a program may have on every GPU since Ampere."""


@pytest.fixture(scope="module")
def interpreter() -> Iterator[ProcessPoolExecutor]:
    with interpreted.start() as executor:
        yield executor


@pytest.mark.long
@pytest.mark.parametrize(
    ("shape", "group", "softcap", "dtype"),
    [
        (LayerShape(2, 64, 64), 3, None, torch.float32),
        (LayerShape(1, 64, 64, Visible(window=9), has_sinks=True), 2, 5.0, torch.bfloat16),
        (LayerShape(2, 24, 16, Visible(chunk=32)), 1, None, torch.float16),
    ],
)
def test_the_kernel_agrees_with_gathered_pages(
    interpreter: ProcessPoolExecutor,
    shape: LayerShape,
    group: int,
    softcap: float | None,
    dtype: torch.dtype,
) -> None:
    run = interpreter.submit(interpreted.compare, shape, group, [61, 1, 700], softcap, dtype)
    run.result()


@pytest.mark.long
@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_kernel_agrees_for_drawn_shapes(
    interpreter: ProcessPoolExecutor, data: st.DataObject
) -> None:
    draw = data.draw
    key_dim = draw(st.sampled_from([64, 80, 96, 128, 192, 256]))
    shape = LayerShape(
        num_kv_heads=draw(st.sampled_from([1, 2, 3])),
        key_dim=key_dim,
        value_dim=draw(st.sampled_from([key_dim, 64, 128])),
        visible=Visible(
            draw(st.none() | st.integers(1, 800)), draw(st.none() | st.integers(16, 900))
        ),
        has_sinks=draw(st.booleans()),
    )
    run = interpreter.submit(
        interpreted.compare,
        shape,
        draw(st.sampled_from([1, 2, 5, 16, 71])),
        draw(st.lists(st.integers(1, 1500), min_size=1, max_size=3)),
        draw(st.none() | st.floats(1, 60)),
        draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16])),
        page=draw(st.sampled_from([16, 32, 256])),
        processors=draw(st.sampled_from([1, 4, 132])),
        seed=draw(st.integers(0, 2**31)),
    )
    run.result()


@pytest.mark.parametrize(
    ("rows", "max_length", "splits"),
    [(1, 200, 1), (1, 8192, 32), (1, 131072, 33), (8, 8192, 5), (64, 8192, 1), (256, 131072, 1)],
)
def test_few_rows_are_split_until_the_gpu_is_full(rows: int, max_length: int, splits: int) -> None:
    assert split_decode.num_splits(rows, 8, max_length, processors=132) == splits


@pytest.mark.parametrize(
    ("shape", "dtype", "taken"),
    [
        (LayerShape(2, 64, 64), torch.bfloat16, True),
        (LayerShape(2, 192, 128, has_sinks=True), torch.float16, True),
        (LayerShape(2, 64, 64), torch.float32, False),
        (LayerShape(2, 288, 64), torch.bfloat16, False),
        (LayerShape(2, 64, 320), torch.bfloat16, False),
        (LayerShape(1, 64, 0), torch.bfloat16, False),
    ],
)
def test_what_the_kernel_takes(shape: LayerShape, dtype: torch.dtype, taken: bool) -> None:
    assert split_decode.takes(shape, dtype) is taken


def compile_for(kernel: Any, capability: int, types: dict[str, str], constants: Any) -> Any:
    names = kernel.arg_names
    signature = {n: "constexpr" if n in constants else types.get(n, "i32") for n in names}
    source = ASTSource(kernel, signature, constexprs={n: constants[n] for n in constants})
    return triton.compile(source, target=GPUTarget("cuda", capability, 32))


POINTERS = {"parts": "*fp32", "sums": "*fp32", "table": "*i32", "lengths": "*i32"}


@pytest.mark.long
@pytest.mark.parametrize("capability", [80, 89, 90, 100, 120])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize(
    ("shape", "group"),
    [
        (LayerShape(8, 128, 128), 4),
        (LayerShape(4, 256, 256), 2),
        (LayerShape(8, 64, 64), 8),
        (LayerShape(128, 192, 128), 1),
        (LayerShape(1, 64, 64), 71),
    ],
)
def test_the_kernels_compile_for_every_gpu(
    capability: int, dtype: str, shape: LayerShape, group: int
) -> None:
    tensors = dict.fromkeys(("query", "key", "value", "sinks", "output"), f"*{dtype}")
    types = {**tensors, **POINTERS, "scale": "fp32", "softcap": "fp32"}
    sizes = split_decode.constants(shape, group, 16)
    flags = dict.fromkeys(("CAPPED", "WINDOWED", "CHUNKED", "SINKS"), True)
    compiled = compile_for(
        split_decode.attend_part, capability, types, {**sizes, **flags, "WHOLE": False}
    )
    assert compiled.asm["cubin"]
    assert compiled.metadata.shared <= ROOM
    joined = compile_for(
        split_decode.join_parts,
        capability,
        types,
        {
            "VALUE_DIM": shape.value_dim,
            "VALUE_WIDTH": sizes["VALUE_WIDTH"],
            "SPLITS": split_decode.MAX_SPLITS,
            "SINKS": True,
        },
    )
    assert joined.asm["cubin"]
    assert joined.metadata.shared <= ROOM
