"""The kernel for chosen latents and the decode kernel over chosen spans, interpreted against torch
operations, and compiled for every GPU that they are meant for."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="triton has no wheel for this machine")

from tests.workers.engine.backends.cuda import chosen_tokens
from tests.workers.engine.backends.cuda.chosen_tokens import CPU
from tests.workers.engine.backends.cuda.test_split_decode import POINTERS, ROOM, compile_for
from tests.workers.engine.backends.cuda.without_gpu import interpreted
from workers.engine.backends.cuda import chosen_latents, kernel_check
from workers.engine.core.layer_shape import LayerShape


@pytest.fixture(scope="module")
def interpreter() -> Iterator[ProcessPoolExecutor]:
    with interpreted.start() as executor:
        yield executor


@pytest.mark.represented_by("chosen")
@pytest.mark.parametrize(
    ("is_chosen", "window", "launches"),
    [(True, None, 2), (True, 20, 2), (False, None, 1)],
    ids=["chosen", "window", "whole"],
)
def test_rows_of_several_sequences_read_their_latents_in_place(
    interpreter: ProcessPoolExecutor, is_chosen: bool, window: int | None, launches: int
) -> None:
    compare = chosen_tokens.compare_latents
    run = interpreter.submit(compare, CPU, torch.float32, is_chosen=is_chosen, window=window)
    assert run.result() == launches


@pytest.mark.parametrize(("is_chosen", "launches"), [(True, 2), (False, 1)])
def test_rows_of_several_sequences_read_their_entries_in_place(
    interpreter: ProcessPoolExecutor, is_chosen: bool, launches: int
) -> None:
    compare = chosen_tokens.compare_entries
    run = interpreter.submit(compare, CPU, torch.float32, is_chosen=is_chosen)
    assert run.result() == launches


@pytest.mark.represented_by("8-2-False")
@pytest.mark.parametrize(
    ("size", "choices", "is_mixed"), [(8, 2, False), (5, 4, True), (7, 1, True)]
)
def test_rows_of_several_sequences_read_the_spans_of_their_heads_in_place(
    interpreter: ProcessPoolExecutor, size: int, choices: int, is_mixed: bool
) -> None:
    sizes = {"size": size, "choices": choices, "is_mixed": is_mixed}
    run = interpreter.submit(chosen_tokens.compare_spans, CPU, torch.float32, **sizes)
    assert run.result() == 2


@pytest.mark.represented_by("4")
@pytest.mark.parametrize("rotated", [4, 0])
def test_parts_of_many_tokens_are_joined(interpreter: ProcessPoolExecutor, rotated: int) -> None:
    """Rows of two tiles of heads, whose numbers fill no register, with sinks."""
    sizes, counts = (20, 24, rotated), [600, 3]
    more = {"sinks": True, "processors": 4, "seed": 1}
    compare = chosen_tokens.compare_mixed
    interpreter.submit(compare, sizes, counts, torch.bfloat16, **more).result()


@pytest.mark.long
def test_the_check_at_start_passes(interpreter: ProcessPoolExecutor) -> None:
    errors = interpreter.submit(chosen_tokens.check_latents).result()
    assert len(errors) == 2
    assert max(errors) < kernel_check._TOLERANCE


@pytest.mark.long
@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_kernel_agrees_for_drawn_shapes(
    interpreter: ProcessPoolExecutor, data: st.DataObject
) -> None:
    draw = data.draw
    run = interpreter.submit(
        chosen_tokens.compare_mixed,
        (
            draw(st.sampled_from([1, 3, 16, 20, 64])),
            draw(st.sampled_from([16, 24, 64, 512])),
            draw(st.sampled_from([0, 4, 16, 64])),
        ),
        draw(st.lists(st.integers(1, 800), min_size=1, max_size=4)),
        draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16])),
        sinks=draw(st.booleans()),
        processors=draw(st.sampled_from([1, 4, 132])),
        seed=draw(st.integers(0, 2**31)),
    )
    run.result()


@pytest.mark.parametrize(
    ("shape", "dtype", "taken"),
    [
        (LayerShape(1, 576, 0), torch.bfloat16, True),
        (LayerShape(1, 576, 0), torch.float32, False),
        (LayerShape(1, 640, 0), torch.bfloat16, False),
        (LayerShape(2, 128, 0), torch.bfloat16, False),
        (LayerShape(1, 128, 128), torch.bfloat16, False),
    ],
)
def test_what_the_kernel_takes(shape: LayerShape, dtype: torch.dtype, taken: bool) -> None:
    assert chosen_latents.takes(shape, dtype) is taken


@pytest.mark.long
@pytest.mark.parametrize("capability", [80, 89, 90, 100, 120])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize(
    ("rank", "dim", "heads"), [(512, 576, 64), (512, 576, 128), (256, 320, 3), (512, 512, 64)]
)
def test_the_kernel_compiles_for_every_gpu(
    capability: int, dtype: str, rank: int, dim: int, heads: int
) -> None:
    tensors = dict.fromkeys(("query", "tokens", "sinks", "output"), f"*{dtype}")
    types = {**tensors, **POINTERS, "slots": "*i64", "scale": "fp32"}
    sizes = chosen_latents.constants(rank, dim, heads)
    compiled = compile_for(
        chosen_latents.attend_chosen, capability, types, {**sizes, "SINKS": True, "WHOLE": False}
    )
    assert compiled.asm["cubin"]
    assert compiled.metadata.shared <= ROOM
