"""Identifies a worker's build: a digest of the engine's sources, its libraries and the CPU's
instructions.

Two workers with the same build and the same weights compute the same logits.
"""

import hashlib
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from workers.engine.backends.cpu.layers.library import compiler_flags, cpu_features

_SOURCES = {".py", ".c", ".h"}
_LIBRARIES = ("torch", "transformers", "llguidance", "numpy")


@cache
def build() -> str:
    """Return 16 hexadecimal digits."""
    digest = hashlib.sha256(platform.machine().encode())
    here = Path(__file__).parent
    for path in sorted(here.joinpath("engine").rglob("*")):
        if path.suffix in _SOURCES:
            digest.update(f"{path.relative_to(here)}\0".encode() + path.read_bytes())
    for name in _LIBRARIES:
        digest.update(f"{name} {_version(name)}\0".encode())
    digest.update(" ".join(compiler_flags(cpu_features()) or ()).encode())
    return digest.hexdigest()[:16]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
