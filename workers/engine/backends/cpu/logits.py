"""The best token of each row of logits, and what a mask takes from a row, by the C library."""

import ctypes

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workers.engine.backends.cpu.layers.library import load_library


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


class _RemovalsStruct(ctypes.Structure):
    """``Removals`` of removal.h."""

    _fields_ = [
        ("logits", ctypes.c_void_p),
        ("vocabulary", ctypes.c_int64),
        ("allowed", ctypes.c_void_p),
        ("pieces", ctypes.c_int64),
        ("rows", ctypes.c_void_p),
        ("lines", ctypes.c_void_p),
        ("removed", ctypes.c_void_p),
        ("overruled", ctypes.c_void_p),
    ]


def choose(
    logits: Tensor, rows: list[int], allowed: NDArray[np.int32]
) -> tuple[Tensor, Tensor] | None:
    """Return the highest logit of each row of ``logits`` [n, vocabulary] and the first token that
    has it. First, tokens whose bit in ``allowed`` [len(rows), words] is 0 become impossible in
    ``rows``.

    The highest logit is NaN if a row contains one. Returns None and changes nothing if there is no
    library or the logits are not contiguous float32 on the CPU.
    """
    if (library := _library_for(logits)) is None:
        return None
    num_rows, vocabulary = logits.shape
    highest = torch.empty(num_rows)
    ids = torch.empty(num_rows, dtype=torch.int64)
    choices = _ChoicesStruct(
        logits=logits.data_ptr(),
        vocabulary=vocabulary,
        highest=highest.data_ptr(),
        ids=ids.data_ptr(),
    )
    if rows:
        lines = np.full(num_rows, -1, dtype=np.int32)
        lines[rows] = np.arange(len(rows))
        choices.allowed, choices.pieces = allowed.ctypes.data, allowed.strides[0] // 2
        choices.lines = lines.ctypes.data
    library.quire_choose(ctypes.byref(choices), num_rows, torch.get_num_threads())
    return highest, ids


def measure_removed(
    logits: Tensor, rows: list[int], allowed: NDArray[np.int32], lines: list[int]
) -> tuple[list[float], list[bool]] | None:
    """For some rows of ``logits`` [n, vocabulary]: the probability of the tokens whose bit in the
    row's line of ``allowed`` is 0, and whether the likeliest token is among them.

    Returns None if there is no library or the logits are not contiguous float32 on the CPU.
    """
    if (library := _library_for(logits)) is None:
        return None
    places = np.array([rows, lines], dtype=np.int32)
    lost = np.empty(len(rows), dtype=np.float32)
    overruled = np.empty(len(rows), dtype=np.int32)
    removals = _RemovalsStruct(
        logits.data_ptr(),
        logits.shape[1],
        allowed.ctypes.data,
        allowed.strides[0] // 2,
        places[0].ctypes.data,
        places[1].ctypes.data,
        lost.ctypes.data,
        overruled.ctypes.data,
    )
    library.quire_find_removed(ctypes.byref(removals), len(rows), torch.get_num_threads())
    return lost.tolist(), overruled.astype(bool).tolist()


def _library_for(logits: Tensor) -> ctypes.CDLL | None:
    if logits.device.type != "cpu" or logits.dtype != torch.float32 or not logits.is_contiguous():
        return None
    return load_library()
