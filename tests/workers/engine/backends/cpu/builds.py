"""The C library compiled for other processors than this one, as far as this one can run it."""

import ctypes
import zlib
from pathlib import Path

import pytest

from workers.engine.backends.cpu.layers import library

BUILDS = ("tiles", "vectors", "plain", "avx2", "avx2 with vnni")
"""With AMX, which is done in C where the processor lacks it; with all that the processor has but
AMX; with nothing beyond AVX512; with AVX2 alone; and with the products of bytes of later processors
that lack AVX512, which this one has if it has those of AVX512."""

_TILES_IN_C = Path(__file__).with_name("tiles_in_c.h")


def build(name: str) -> ctypes.CDLL:
    """One of ``BUILDS``. Skips the test where this processor cannot run it."""
    features = library.cpu_features()
    if name.startswith("avx2"):
        flags = library.compiler_flags(library.limit_features(features, "avx2") - {"avx_vnni"})
        if name == "avx2 with vnni":
            flags = [*(flags or ()), *_vnni(features)]
        return _opened(flags)
    if library.AVX512.flags(features) is None:
        pytest.skip("needs AVX512")
    has_tiles = features.issuperset(library.AMX)
    if name != "tiles":
        features -= set(library.AMX)
    if name == "plain":
        features -= set(library.AVX512.faster)
    flags = library.compiler_flags(features)
    assert flags is not None
    if name == "tiles" and not has_tiles:
        version = zlib.crc32(_TILES_IN_C.read_bytes())
        flags += ["-include", str(_TILES_IN_C), f"-DTILES_IN_C={version}"]
    return _opened(flags)


def _vnni(features: frozenset[str]) -> list[str]:
    if "avx_vnni" in features:
        return ["-mavxvnni"]
    if not features.issuperset({"avx512_vnni", "avx512vl"}):
        pytest.skip("needs AVX-VNNI or AVX512-VNNI")
    return ["-D__AVXVNNI__", '-DVNNI_ENCODING="%{evex%}"']


def _opened(flags: list[str] | None) -> ctypes.CDLL:
    if flags is None:
        pytest.skip("needs an x86 processor with AVX2")
    return library.open_library(flags)
