"""Holds the Triton decode kernel, as triton's interpreter runs it on the CPU, to torch operations.

Triton decides when it is imported whether kernels are interpreted, so this is for a process that
was started with ``TRITON_INTERPRET=1``: :func:`start` starts one.
"""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from workers.engine.backends.base.cache_probe import AttentionRule
from workers.engine.backends.cuda import split_decode
from workers.engine.backends.cuda.attention import attend_gathered
from workers.engine.backends.cuda.kv_cache import TokenMajorLayer, Way
from workers.engine.backends.cuda.metadata import PagedMetadata
from workers.engine.core.layer_shape import LayerShape

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def start() -> ProcessPoolExecutor:
    executor = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_prepare)
    with patch.dict(os.environ, {"TRITON_INTERPRET": "1"}):
        executor.submit(os.getpid).result()
    return executor


def _prepare() -> None:
    torch.set_num_threads(1)
    multiply = interpreter.InterpreterBuilder.create_dot

    def multiply_values(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return multiply(self, _widened(a), _widened(b), *rest)

    interpreter.InterpreterBuilder.create_dot = multiply_values
    convert = interpreter._convert_float

    def convert_and_round(values: Any, source: Any, target: Any, mode: Any) -> Any:
        if (source, target) == (tl.float32, tl.bfloat16):
            return _rounded(values)
        return convert(values, source, target, mode)

    interpreter._convert_float = convert_and_round


def _rounded(values: Any) -> Any:
    """float32 as bfloat16, the nearest one as on a GPU: the interpreter would drop bits."""
    rounded = torch.from_numpy(np.ascontiguousarray(values)).bfloat16()
    return rounded.view(torch.uint16).numpy().reshape(np.shape(values))


def _widened(handle: Any) -> Any:
    """A bfloat16 operand in float32: the interpreter would multiply its bits as integers."""
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    values = (handle.data.astype(np.uint32) << 16).view(np.float32)
    return interpreter.TensorHandle(values, tl.float32)


def compare(
    shape: LayerShape,
    group: int,
    lengths: list[int],
    softcap: float | None,
    dtype: torch.dtype,
    *,
    page: int = 16,
    processors: int = 8,
    seed: int = 0,
) -> None:
    """Attend with ``group`` heads per key head by the kernel and by torch, over pages in a random
    order. Values that no row may read are NaN."""
    torch.manual_seed(seed)
    count = [-(-length // page) for length in lengths]
    layer = TokenMajorLayer(shape, 1 + sum(count), page, torch.empty(0, dtype=dtype), Way.SPLIT)
    order = (1 + torch.randperm(sum(count))).split(count)
    table = torch.zeros((len(lengths), max(count)), dtype=torch.int32)
    for row, blocks in enumerate(order):
        table[row, : len(blocks)] = blocks
    layer.key.normal_()
    layer.value.normal_()
    heads = group * shape.num_kv_heads
    query = torch.randn(len(lengths), heads, shape.key_dim, dtype=dtype)
    sinks = 3 * torch.randn(heads) if shape.has_sinks else None
    rule = AttentionRule(shape.key_dim**-0.5, shape.visible, softcap, sinks)
    ends = torch.tensor(lengths, dtype=torch.int32)
    metadata = PagedMetadata(
        None, ends, ends, ends, ends, table, 1, max(lengths), len(lengths), []  # type: ignore[arg-type]
    )  # fmt: skip
    expected = attend_gathered(query.float(), _in_float32(layer), metadata, rule)
    layer.key[0] = layer.value[0] = torch.nan
    for length, blocks in zip(lengths, order, strict=True):
        if length % page:
            layer.key[blocks[-1], length % page :] = torch.nan
            layer.value[blocks[-1], length % page :] = torch.nan
    actual = split_decode.attend(query, layer, table, ends, max(lengths), rule, processors)
    assert actual.dtype == dtype
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(actual.float(), expected, rtol=tolerance, atol=tolerance)


def _in_float32(layer: TokenMajorLayer) -> TokenMajorLayer:
    wide = TokenMajorLayer(layer.shape, 1, 1, torch.empty(0), Way.SPLIT)
    wide.key, wide.value = layer.key.float(), layer.value.float()
    return wide
