"""The best token of each row of logits, by the C library."""

import ctypes

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workers.engine.cpu.library import load_library


class _ChoicesStruct(ctypes.Structure):
    """``Choices`` of logits.h."""

    _fields_ = [
        ("logits", ctypes.c_void_p),
        ("vocabulary", ctypes.c_int64),
        ("allowed", ctypes.c_void_p),
        ("pieces", ctypes.c_int64),
        ("lines", ctypes.c_void_p),
        ("highest", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
    ]


def choose(
    logits: Tensor, rows: list[int], allowed: NDArray[np.int32]
) -> tuple[Tensor, Tensor] | None:
    """The highest logit of each row of ``logits`` [n, vocabulary] and the first token that has it.
    First, tokens whose bit in ``allowed`` [len(rows), words] is 0 become impossible in ``rows``.

    The highest logit is NaN if a row contains one. Returns None and changes nothing if there is no
    library or the logits are not contiguous float32 on the CPU.
    """
    library = load_library()
    if library is None or logits.dtype != torch.float32 or not logits.is_contiguous():
        return None
    if logits.device.type != "cpu":
        return None
    num_rows, vocabulary = logits.shape
    highest = torch.empty(num_rows)
    ids = torch.empty(num_rows, dtype=torch.int64)
    lines = np.full(num_rows, -1, dtype=np.int32)
    lines[rows] = np.arange(len(rows))
    choices = _ChoicesStruct(
        logits.data_ptr(),
        vocabulary,
        allowed.ctypes.data,
        allowed.strides[0] // 2,
        lines.ctypes.data,
        highest.data_ptr(),
        ids.data_ptr(),
    )
    library.quire_choose(ctypes.byref(choices), num_rows, torch.get_num_threads())
    return highest, ids
