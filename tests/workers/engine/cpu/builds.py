"""The C library compiled for other processors than this one, as far as this one can run it."""

import ctypes
import zlib
from pathlib import Path

from workers.engine.cpu import library

BUILDS = ("tiles", "vectors", "plain")
"""With AMX, which is done in C where the processor lacks it; with all that the processor has but
AMX; and with nothing beyond AVX512."""

_TILES_IN_C = Path(__file__).with_name("tiles_in_c.h")


def build(name: str) -> ctypes.CDLL:
    """One of ``BUILDS``."""
    features = library.cpu_features()
    has_tiles = features.issuperset(library.TILES)
    if name != "tiles":
        features -= set(library.TILES)
    if name == "plain":
        features -= set(library.FASTER)
    flags = library.compiler_flags(features)
    assert flags is not None
    if name == "tiles" and not has_tiles:
        version = zlib.crc32(_TILES_IN_C.read_bytes())
        flags += ["-include", str(_TILES_IN_C), f"-DTILES_IN_C={version}"]
    return library.open_library(flags)
