"""The fused kernels, interpreted against the operations that they replace, and compiled for every
GPU that they are meant for. ``test_fusion`` holds these operations to the models' own modules."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="triton has no wheel for this machine")

import triton

from tests.representatives import stand_for_all
from tests.workers.engine.backends.cuda.test_split_decode import ROOM, compile_for
from tests.workers.engine.backends.cuda.without_gpu import interpreted, interpreted_fusion
from workers.engine.backends.cuda import fused_kernels, kernel_check
from workers.engine.backends.cuda.fusable import Activation, NormRule, RotationRule

DTYPES = st.sampled_from([torch.bfloat16, torch.float16, torch.float32])
SEEDS = st.integers(0, 2**31)
DRAWN = settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def interpreter() -> Iterator[ProcessPoolExecutor]:
    with interpreted.start() as executor:
        yield executor


@pytest.mark.long
@DRAWN
@given(data=st.data())
def test_norms_agree(interpreter: ProcessPoolExecutor, data: st.DataObject) -> None:
    draw = data.draw
    adds = draw(st.booleans())
    size = draw(st.integers(1, 300) | st.sampled_from([64, 576, 2048, 4096]))
    outer = draw(st.integers(1, 5))
    shape = (1, outer, size) if adds else (1, outer, draw(st.integers(1, 4)), size)
    interpreter.submit(
        interpreted_fusion.compare_norm,
        shape,
        NormRule(draw(st.sampled_from([1e-5, 1e-6])), draw(st.integers(0, 1)), draw(st.booleans())),
        draw(DTYPES),
        weighted=draw(st.booleans()),
        adds=adds,
        swapped=not adds and draw(st.booleans()),
        seed=draw(SEEDS),
    ).result()


@pytest.mark.long
@DRAWN
@given(data=st.data())
def test_gates_agree(interpreter: ProcessPoolExecutor, data: st.DataObject) -> None:
    draw = data.draw
    interpreter.submit(
        interpreted_fusion.compare_gate,
        draw(st.integers(1, 5)),
        draw(st.integers(1, 300) | st.sampled_from([1024, 1536, 2500])),
        draw(st.sampled_from(Activation)),
        draw(DTYPES),
        halves=draw(st.booleans()),
        seed=draw(SEEDS),
    ).result()


@pytest.mark.long
@DRAWN
@given(data=st.data())
def test_rotations_agree(interpreter: ProcessPoolExecutor, data: st.DataObject) -> None:
    draw = data.draw
    dim = 2 * draw(st.integers(1, 40) | st.sampled_from([32, 64, 128]))
    interleaved, table = draw(st.sampled_from([(False, 0), (True, 0), (True, 1), (False, 2)]))
    dtype = draw(DTYPES)
    interpreter.submit(
        interpreted_fusion.compare_rotation,
        draw(st.integers(1, 4)),
        (draw(st.integers(1, 5)), draw(st.integers(1, 3))),
        (dim + draw(st.integers(0, 40)), draw(st.integers(1, 160))),
        RotationRule(dim, interleaved, table, draw(st.booleans())),
        (dtype, draw(st.sampled_from([dtype, torch.float32]))),
        keeps=draw(st.booleans()),
        seed=draw(SEEDS),
    ).result()


@pytest.mark.wide
@pytest.mark.parametrize("dtype", stand_for_all([torch.bfloat16], [torch.bfloat16, torch.float32]))
def test_common_shapes_agree(interpreter: ProcessPoolExecutor, dtype: torch.dtype) -> None:
    options: dict[str, Any] = {"weighted": True, "swapped": False, "seed": 1}
    rule = NormRule(1e-5, 0, rounds=True)
    for adds in (False, True):
        interpreter.submit(
            interpreted_fusion.compare_norm, (1, 3, 576), rule, dtype, adds=adds, **options
        ).result()
    interpreter.submit(
        interpreted_fusion.compare_gate, 3, 1536, Activation.SILU, dtype, halves=False, seed=1
    ).result()
    interpreter.submit(
        interpreted_fusion.compare_rotation,
        3,
        (9, 3),
        (64, 64),
        RotationRule(64, interleaved=False, table=0, rounds=True),
        (dtype, dtype),
        keeps=True,
        seed=1,
    ).result()


@pytest.mark.long  # 9 s in the interpreter; the others try each kernel
def test_the_check_at_start_passes(interpreter: ProcessPoolExecutor) -> None:
    errors = interpreter.submit(interpreted_fusion.check_kernels).result()
    assert max(errors) < 0.9 * kernel_check._TOLERANCE


@pytest.mark.long
@pytest.mark.parametrize("capability", [80, 89, 90, 100, 120])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_kernels_compile_for_every_gpu(capability: int, dtype: str) -> None:
    def compiles(kernel: Any, tensors: str, types: dict[str, str], **constants: Any) -> None:
        types = {**dict.fromkeys(tensors.split(), f"*{dtype}"), **types}
        compiled = compile_for(kernel, capability, types, constants)
        assert compiled.asm["cubin"]
        assert compiled.metadata.shared <= ROOM

    norm = fused_kernels.normalize_rows
    for adds, rounds, offset, size in [(1, 1, 0, 4096), (1, 0, 1, 5376), (0, 1, 0, 128)]:
        compiles(
            norm, "x added weight total output", {"epsilon": "fp32"},
            SIZE=size, WIDTH=triton.next_power_of_2(size), ADDS=bool(adds),
            WEIGHTED=True, OFFSET=offset, ROUNDS=bool(rounds),
        )  # fmt: skip
    for silu in (True, False):
        compiles(fused_kernels.gate_rows, "gate up output", {}, COLUMNS=1024, SILU=silu)
    heads = "query key value new_query new_key key_pages value_pages"
    for table, interleaved, tables in [(0, 0, f"*{dtype}"), (1, 1, "*fp32"), (2, 0, f"*{dtype}")]:
        compiles(
            fused_kernels.rotate_and_store, heads,
            {"cosine": tables, "sine": tables, "slots": "*i64"},
            KEY_DIM=128, KEY_WIDTH=128, VALUE_DIM=96, VALUE_WIDTH=128, DIM=64,
            INTERLEAVED=bool(interleaved), TABLE=table, ROUNDS=True, STORES=True, KEEPS=True,
        )  # fmt: skip


def test_the_kernel_that_stores_latents_compiles() -> None:
    """Its interpreter takes a range of no columns, for the values that there are not; its compiler
    does not."""
    tensors = "query key value cosine sine new_query new_key key_pages value_pages"
    types = {**dict.fromkeys(tensors.split(), "*bf16"), "slots": "*i64"}
    constants: dict[str, Any] = {
        "KEY_DIM": 576, "KEY_WIDTH": 1024, "VALUE_DIM": 0, "VALUE_WIDTH": 0, "DIM": 0,
        "INTERLEAVED": False, "TABLE": 0, "ROUNDS": False, "STORES": True, "KEEPS": False,
    }  # fmt: skip
    compiled = compile_for(fused_kernels.rotate_and_store, 90, types, constants)
    assert compiled.asm["cubin"]
