"""What this machine's products and memory reach, with the instructions that the C forward uses."""

import ctypes
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from workers.engine.backends.cpu.layers import library
from workers.engine.backends.cpu.layers.library import compiler_flags, cpu_features

_SOURCE = Path(__file__).with_name("limits.c")
_SIZE = 256 * 2**20
"""The bytes that are read to measure memory: no cache holds them."""
_PIECE = 16 * 2**20
"""The bytes that are timed together: what another process interrupts must be a small part."""
_ROUNDS = 2**16


@dataclass(frozen=True, slots=True)
class Limits:
    """Operations per second of products (a product and a sum count as two), bytes per second of
    memory, and the instructions of the products."""

    products: float
    memory: float
    instructions: str

    def seconds(self, operations: float, size: float) -> float:
        """Return how long this many operations and bytes take at least."""
        return max(operations / self.products, size / self.memory)

    def bound(self, operations: float, size: float) -> str:
        """Return which of the two takes longer."""
        return "products" if operations / self.products > size / self.memory else "memory"


def measure_limits(threads: int, repeats: int = 3, size: int = _SIZE) -> Limits:
    """Measure the limits of some threads: the best of many short runs, since others may use the
    processor and its memory too."""
    measured = load_measures()
    memory = torch.ones(size, dtype=torch.uint8)
    pieces = range(memory.data_ptr(), memory.data_ptr() + size, min(_PIECE, size))
    reads = (
        measured.quire_measure_memory(piece, min(_PIECE, size), threads)
        for _ in range(repeats)
        for piece in pieces
    )
    products = (measured.quire_measure_products(threads, _ROUNDS) for _ in range(20 * repeats))
    return Limits(max(products), max(reads), name_instructions(cpu_features()))


def measure_byte_products(threads: int, repeats: int = 3) -> float:
    """Return the operations per second of products in 8 bits: the most of many short runs."""
    measured = load_measures()
    runs = (measured.quire_measure_byte_products(threads, _ROUNDS) for _ in range(20 * repeats))
    return float(max(runs))


def name_instructions(features: frozenset[str]) -> str:
    """Return the instructions by which products of bfloat16 are computed on a CPU with these
    features."""
    flags = compiler_flags(features) or []
    if "-mamx-bf16" in flags:
        return "tiles"
    if "-mavx512bf16" in flags or any("+bf16" in flag for flag in flags):
        return "pairs of bfloat16"
    return "float32"


@cache
def load_measures() -> ctypes.CDLL:
    """Return the measures of limits.c, compiled as the C forward is. Raises OSError."""
    flags, compiler = compiler_flags(cpu_features()), shutil.which("cc")
    if flags is None or compiler is None:
        raise OSError("there are no C kernels for this processor, or no C compiler")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "limits.so"
        command = [compiler, *flags, f"-I{library.KERNELS}", str(_SOURCE), "-o", str(made), "-lm"]
        subprocess.run(command, check=True)
        measured = ctypes.CDLL(str(made))
    if measured.quire_prepare() != 0:
        raise OSError("the system does not let this process use AMX")
    measured.quire_measure_products.restype = ctypes.c_double
    measured.quire_measure_products.argtypes = [ctypes.c_int, ctypes.c_int64]
    measured.quire_measure_byte_products.restype = ctypes.c_double
    measured.quire_measure_byte_products.argtypes = [ctypes.c_int, ctypes.c_int64]
    measured.quire_measure_memory.restype = ctypes.c_double
    measured.quire_measure_memory.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]
    measured.quire_measure_attention.restype = ctypes.c_double
    return measured
