"""Compiles the C sources in kernels/ for this CPU, once, and loads them.

Without a C compiler or the instructions there is no library, and the engine computes with torch.
"""

import ctypes
import fcntl
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

logger = logging.getLogger(__name__)

KERNELS = Path(__file__).parents[1] / "kernels"


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """Instructions by their names in /proc/cpuinfo, and the compiler flags that enable them."""

    needed: dict[str, str]
    faster: dict[str, str]

    def flags(self, features: frozenset[str]) -> list[str] | None:
        if not features.issuperset(self.needed):
            return None
        faster = (flag for feature, flag in self.faster.items() if feature in features)
        return [*self.needed.values(), *faster]


AMX = {"amx_tile": "-mamx-tile", "amx_bf16": "-mamx-bf16", "amx_int8": "-mamx-int8"}
AVX512 = InstructionSet(
    needed={
        "avx512f": "-mavx512f",
        "avx512bw": "-mavx512bw",
        "avx512vl": "-mavx512vl",
        "avx512dq": "-mavx512dq",
        "fma": "-mfma",
    },
    faster={"avx512_bf16": "-mavx512bf16", "avx512_vnni": "-mavx512vnni"},
)
AVX2 = InstructionSet(needed={"avx2": "-mavx2", "fma": "-mfma"}, faster={"avx_vnni": "-mavxvnni"})
_NEON = {"asimddp": "+dotprod", "bf16": "+bf16", "i8mm": "+i8mm"}

LIMITS = ("amx", "avx512", "avx512_vnni", "avx2", "none")
"""The values of ``QUIRE_INSTRUCTIONS`` on x86, from everything that a CPU has down to nothing."""

_NEEDED = "AVX512, AVX2 with FMA, or NEON in the instructions of this CPU"
_TIMEOUT_S = 120


@cache
def load_library() -> ctypes.CDLL | None:
    """Return the compiled library, or None where it is not available; the reason is logged once."""
    flags = compiler_flags(cpu_features())
    if flags is None:
        logger.info("there is no %s: the engine computes with torch", _NEEDED)
        return None
    try:
        return open_library(flags)
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("the engine computes with torch, without its C kernels: %s", error)
        return None


def why_no_kernels() -> str | None:
    """Return why this machine cannot use the C kernels, which alone compute with rounded
    weights."""
    if compiler_flags(cpu_features()) is None:
        return f"there is no {_NEEDED}"
    if load_library() is None:
        return "the C kernels could not be compiled (Debian: apt install gcc libc6-dev)"
    return None


def open_library(flags: list[str]) -> ctypes.CDLL:
    """Load the library, compiled if necessary. Raises OSError and SubprocessError."""
    library = ctypes.CDLL(str(_compile(flags)))
    library.quire_thread_room.restype = ctypes.c_int64
    if library.quire_prepare() != 0:
        raise OSError("the system does not let this process use AMX")
    return library


def compiler_flags(features: frozenset[str]) -> list[str] | None:
    """Return the compiler flags for a CPU with these features; None if it lacks a required one."""
    if "asimd" in features:
        base = "armv8.2-a" if "asimddp" in features else "armv8-a"
        extensions = (x for feature, x in _NEON.items() if feature in features)
        chosen = ["-march=" + "".join([base, *extensions])]
    elif (vectors := AVX512.flags(features)) is not None:
        chosen = [*vectors, *(AMX.values() if features.issuperset(AMX) else ())]
    elif (vectors := AVX2.flags(features)) is not None:
        chosen = vectors
    else:
        return None
    # If the compiler were free to fuse products and sums, two copies of one function could round
    # differently, and a row's result would depend on which copy computed it.
    return ["-O3", "-std=gnu11", "-ffp-contract=off", "-shared", "-fPIC", "-fopenmp", *chosen]


def cpu_features() -> frozenset[str]:
    """This CPU's instruction sets by their names in /proc/cpuinfo, as far as
    ``QUIRE_INSTRUCTIONS`` allows them; none where they are unknown. Raises ValueError."""
    field = {"x86_64": "flags", "aarch64": "Features"}.get(platform.machine())
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    line = next((x for x in lines if field and x.startswith(field)), "")
    limit = os.environ.get("QUIRE_INSTRUCTIONS")
    features = frozenset(line.partition(":")[2].split())
    return limit_features(features, limit) if limit else features


def limit_features(features: frozenset[str], limit: str) -> frozenset[str]:
    """``features`` without the instruction sets beyond ``limit``. Raises ValueError."""
    allowed = ("none",) if "asimd" in features else LIMITS
    if limit not in allowed:
        raise ValueError(f"QUIRE_INSTRUCTIONS is {limit!r}: use {', '.join(allowed)}, or unset it")
    if limit == "none":
        return frozenset()
    if limit == "amx":
        return features
    left = features - set(AMX)
    if limit == "avx512_vnni":
        return left - {"avx512_bf16"}
    return left if limit == "avx512" else left - {x for x in left if x.startswith("avx512")}


def _compile(flags: list[str]) -> Path:
    """Return the library's file, named by a hash of its inputs; compiled if it does not exist."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise OSError("there is no C compiler (Debian: apt install gcc libc6-dev)")
    digest = hashlib.sha256("\0".join([compiler, *flags]).encode())
    for source in sorted(KERNELS.rglob("*.[ch]")):
        digest.update(source.read_bytes())
    target = _cache_folder() / f"decoder-{digest.hexdigest()[:16]}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.parent):
            if not target.exists():  # another process may have compiled it meanwhile
                _run_compiler([compiler, *flags, str(KERNELS / "decoder.c"), "-lm"], target)
    return target


def _run_compiler(command: list[str], target: Path) -> None:
    """Write ``target`` at once or not at all. Raises OSError with what the compiler says."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        result = subprocess.run(  # noqa: S603 - our own sources, the user's own compiler
            [*command, "-o", str(made)],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if result.returncode != 0:
            raise OSError(f"{command[0]} failed: {result.stderr.strip()[-500:]}")
        made.replace(target)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Let one process at a time compile into ``folder``: several workers begin together."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _cache_folder() -> Path:
    home = os.environ.get("QUIRE_HOME")
    return (Path(home) if home else KERNELS.parents[4] / "var") / "native"
