import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.engine.cpu import library
from workers.engine.cpu.library import compiler_flags, load_library, why_no_int8

VECTORS = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "fma"})


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("QUIRE_HOME", str(tmp_path))
    load_library.cache_clear()
    yield
    load_library.cache_clear()


def test_what_the_cpu_can_do_decides() -> None:
    assert compiler_flags(VECTORS - {"avx512dq"}) is None
    vectors = compiler_flags(VECTORS | {"sse2"})
    assert vectors is not None
    assert "-mavx512dq" in vectors
    faster = compiler_flags(VECTORS | {"avx512_bf16", "avx512_vnni"})
    assert faster == [*vectors, "-mavx512bf16", "-mavx512vnni"]
    tiles = compiler_flags(VECTORS | {"amx_tile", "amx_bf16"})
    assert tiles == [*vectors, "-mamx-tile", "-mamx-bf16"]


def test_without_the_instructions_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "cpu_features", lambda: frozenset({"sse2"}))
    assert load_library() is None


def test_why_there_is_no_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "cpu_features", lambda: VECTORS)
    assert why_no_int8() == "this CPU has no AVX512-VNNI"
    monkeypatch.setattr(library, "cpu_features", lambda: VECTORS | {"avx512_vnni"})
    monkeypatch.setenv("CC", "/nowhere/cc")
    assert "could not be compiled" in str(why_no_int8())
    monkeypatch.setattr(library, "load_library", object)
    assert why_no_int8() is None


@pytest.mark.parametrize("compiler", ["/nowhere/cc", "false"])
def test_without_a_compiler_that_works_there_is_none(
    compiler: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "cpu_features", lambda: VECTORS)
    monkeypatch.setenv("CC", compiler)
    with caplog.at_level(logging.WARNING):
        assert load_library() is None
    assert "computes with torch" in caplog.text


@pytest.mark.skipif(compiler_flags(library.cpu_features()) is None, reason="needs AVX512")
def test_it_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_library() is not None
    [made] = (tmp_path / "native").iterdir()
    load_library.cache_clear()
    monkeypatch.setattr(library.subprocess, "run", None)
    assert load_library() is not None
    assert list((tmp_path / "native").iterdir()) == [made]
