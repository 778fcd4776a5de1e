"""Compiles the C sources beside this file for this CPU, once, and loads them.

Without a C compiler or the instructions there is no library, and the engine computes with torch.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

logger = logging.getLogger(__name__)

_FOLDER = Path(__file__).parent
_SOURCES = (
    "decoder.c", "attention.h", "bfloat16.h", "int8.h", "logits.h", "matmul.h", "project.h",
)  # fmt: skip
_NEEDED = {
    "avx512f": "-mavx512f",
    "avx512bw": "-mavx512bw",
    "avx512vl": "-mavx512vl",
    "avx512dq": "-mavx512dq",
    "fma": "-mfma",
}
FASTER = {"avx512_bf16": "-mavx512bf16", "avx512_vnni": "-mavx512vnni"}
TILES = {"amx_tile": "-mamx-tile", "amx_bf16": "-mamx-bf16"}
"""Instructions by their names in /proc/cpuinfo, and what makes a compiler use them."""

_TIMEOUT_S = 120


@cache
def load_library() -> ctypes.CDLL | None:
    """The compiled library, or None where it cannot be had; why is logged once."""
    flags = compiler_flags(cpu_features())
    if flags is None:
        logger.info("this CPU has no AVX512: the engine computes with torch")
        return None
    try:
        return open_library(flags)
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("the engine computes with torch, without its C kernels: %s", error)
        return None


def why_no_int8() -> str | None:
    """What keeps this machine from computing with weights in int8."""
    features = cpu_features()
    if compiler_flags(features) is None or "avx512_vnni" not in features:
        return "this CPU has no AVX512-VNNI"
    if load_library() is None:
        return "the C kernels could not be compiled (Debian: apt install gcc libc6-dev)"
    return None


def open_library(flags: list[str]) -> ctypes.CDLL:
    """Compiled if need be. Raises OSError and SubprocessError."""
    library = ctypes.CDLL(str(_compiled(flags)))
    if library.quire_prepare() != 0:
        raise OSError("the system does not let this process use AMX")
    return library


def compiler_flags(features: frozenset[str]) -> list[str] | None:
    """What to compile with for a CPU of these features; None if it lacks what is needed."""
    if not features.issuperset(_NEEDED):
        return None
    faster = [flag for feature, flag in FASTER.items() if feature in features]
    tiles = TILES.values() if features.issuperset(TILES) else ()
    # Were products and sums contracted where the compiler likes, two copies of one function could
    # round differently, and a row's result would depend on which of them computed it.
    plain = ["-O3", "-std=gnu11", "-ffp-contract=off", "-shared", "-fPIC", "-fopenmp"]
    return [*plain, *_NEEDED.values(), *faster, *tiles]


def cpu_features() -> frozenset[str]:
    """This CPU's instruction sets by their names in /proc/cpuinfo; none where they are unknown."""
    if platform.machine() != "x86_64":
        return frozenset()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((x for x in lines if x.startswith("flags")), "").split())


def _compiled(flags: list[str]) -> Path:
    """The library's file, named by what it was made from, compiled if it is not there."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise OSError("there is no C compiler (Debian: apt install gcc libc6-dev)")
    digest = hashlib.sha256("\0".join([compiler, *flags]).encode())
    for source in _SOURCES:
        digest.update((_FOLDER / source).read_bytes())
    target = _cache_folder() / f"decoder-{digest.hexdigest()[:16]}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / target.name
            command = [compiler, *flags, str(_FOLDER / _SOURCES[0]), "-o", str(made), "-lm"]
            result = subprocess.run(  # noqa: S603 - our own sources, the user's own compiler
                command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
            if result.returncode != 0:
                raise OSError(f"{compiler} failed: {result.stderr.strip()[-500:]}")
            made.replace(target)  # whole or not at all, whoever else compiles it
    return target


def _cache_folder() -> Path:
    home = os.environ.get("QUIRE_HOME")
    return (Path(home) if home else _FOLDER.parents[2] / "var") / "native"
