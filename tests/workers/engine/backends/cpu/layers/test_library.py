import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.engine.backends.cpu.layers import library
from workers.engine.backends.cpu.layers.library import (
    compiler_flags,
    cpu_features,
    limit_features,
    load_library,
    why_no_kernels,
)

SHORT = frozenset({"avx2", "fma", "avx"})
VECTORS = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "fma"})


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("QUIRE_HOME", str(tmp_path))
    load_library.cache_clear()
    yield
    load_library.cache_clear()


def test_what_the_cpu_can_do_decides() -> None:
    assert compiler_flags(VECTORS - {"fma"}) is None
    vectors = compiler_flags(VECTORS | {"sse2"})
    assert vectors is not None
    assert "-mavx512dq" in vectors
    faster = compiler_flags(VECTORS | {"avx512_bf16", "avx512_vnni"})
    assert faster == [*vectors, "-mavx512bf16", "-mavx512vnni"]
    tiles = compiler_flags(VECTORS | {"amx_tile", "amx_bf16", "amx_int8"})
    assert tiles == [*vectors, "-mamx-tile", "-mamx-bf16", "-mamx-int8"]


def test_without_avx512_it_is_avx2() -> None:
    for features in (SHORT, SHORT | VECTORS - {"avx512dq"}):
        assert (compiler_flags(features) or [])[-2:] == ["-mavx2", "-mfma"]
    laptop = compiler_flags(SHORT | {"avx_vnni"})
    assert (laptop or [])[-3:] == ["-mavx2", "-mfma", "-mavxvnni"]


def test_arm_processors_say_what_they_multiply() -> None:
    for features, march in (
        ({"asimd"}, "armv8-a"),
        ({"asimd", "asimddp"}, "armv8.2-a+dotprod"),
        ({"asimd", "asimddp", "i8mm", "bf16"}, "armv8.2-a+dotprod+bf16+i8mm"),
    ):
        assert f"-march={march}" in (compiler_flags(frozenset(features)) or [])


def test_an_operator_can_limit_the_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = SHORT | VECTORS | {"avx512_vnni", "avx512_bf16"}
    everything = vectors | {"amx_tile", "amx_bf16", "amx_int8"}
    assert limit_features(everything, "amx") == everything
    assert limit_features(everything, "avx512") == vectors
    assert limit_features(everything, "avx512_vnni") == SHORT | VECTORS | {"avx512_vnni"}
    assert limit_features(everything, "avx2") == SHORT
    assert (
        limit_features(everything, "none")
        == limit_features(frozenset({"asimd"}), "none")
        == frozenset()
    )
    monkeypatch.setenv("QUIRE_INSTRUCTIONS", "none")
    assert cpu_features() == frozenset()
    assert load_library() is None


@pytest.mark.parametrize(("features", "limit"), [(SHORT, "sse2"), ({"asimd"}, "avx2")])
def test_unknown_limits_are_refused(features: frozenset[str], limit: str) -> None:
    with pytest.raises(ValueError, match=f"QUIRE_INSTRUCTIONS is '{limit}': use "):
        limit_features(frozenset(features), limit)


def test_without_the_instructions_there_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "cpu_features", lambda: frozenset({"sse2"}))
    assert load_library() is None


def test_why_there_is_no_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "cpu_features", lambda: frozenset({"sse2"}))
    assert "no AVX512, AVX2 with FMA, or NEON" in str(why_no_kernels())
    monkeypatch.setattr(library, "cpu_features", lambda: VECTORS)
    monkeypatch.setenv("CC", "/nowhere/cc")
    assert "could not be compiled" in str(why_no_kernels())
    monkeypatch.setattr(library, "load_library", object)
    assert why_no_kernels() is None


@pytest.mark.parametrize("compiler", ["/nowhere/cc", "false"])
def test_without_a_compiler_that_works_there_is_no_library(
    compiler: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "cpu_features", lambda: VECTORS)
    monkeypatch.setenv("CC", compiler)
    with caplog.at_level(logging.WARNING):
        assert load_library() is None
    assert "computes with torch" in caplog.text


@pytest.mark.skipif(compiler_flags(library.cpu_features()) is None, reason="no instructions")
def test_it_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "decoder.c").write_text(
        "int quire_prepare(void) { return 0; } long quire_thread_room(void) { return 0; }"
    )
    monkeypatch.setattr(library, "KERNELS", tmp_path)
    assert load_library() is not None
    [made] = (tmp_path / "native").iterdir()
    load_library.cache_clear()
    monkeypatch.setattr("subprocess.run", None)
    assert load_library() is not None
    assert list((tmp_path / "native").iterdir()) == [made]


def test_what_another_process_compiles_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """While this process waits for the lock, the other one ends."""
    monkeypatch.setenv("CC", sys.executable)
    targets: list[Path] = []
    monkeypatch.setattr(library, "_run_compiler", lambda _, target: targets.append(target))
    library._compile([])
    [target] = targets
    monkeypatch.setattr("fcntl.flock", lambda *_: target.touch())
    assert library._compile([]) == target
    assert targets == [target]
