"""The C forward on ARM, cross-compiled and emulated: as on this processor within rounding, and with
the same bits in any chunk of a prompt."""

import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from workers.engine.backends.cpu.layers.library import compiler_flags, cpu_features

ARM_COMPILER = "aarch64-linux-gnu-gcc"
EMULATOR = "qemu-aarch64"
HERE = Path(__file__).parent
KERNELS = HERE.parents[4] / "workers" / "engine" / "backends" / "cpu" / "kernels"

PROCESSORS = {
    "plain": {"asimd"},
    "dotprod": {"asimd", "asimddp"},
    "bf16": {"asimd", "asimddp", "bf16", "i8mm"},
}
"""What /proc/cpuinfo says of a Cortex-A72, a Graviton 2, and a Graviton 3 or later."""

HEADS = {
    **{size: [f"-DHEAD_SIZE={size}"] for size in ("64", "72", "80")},
    "64 beside a delta network": ["-DHEAD_SIZE=64", "-DDELTA_SIZE=80"],
    "64 beside state spaces": ["-DHEAD_SIZE=64", "-DSPACE_SIZE=80"],
    "80 from latents": ["-DHEAD_SIZE=80", "-DVALUE_SIZE=40"],
}
"""The sizes of heads, and what computes beside them. All but the first end within a register of
AVX512, and states within what registers hold at once."""

Logits = NDArray[np.float32]
Run = Callable[[str, int, str], Logits]
"""By dtype, chunk and size of heads."""

pytestmark = pytest.mark.long  # emulated

for tool in (ARM_COMPILER, EMULATOR):
    if shutil.which(tool) is None:
        reason = f"needs {tool} (Debian: apt install gcc-aarch64-linux-gnu qemu-user)"
        pytest.skip(reason, allow_module_level=True)


def built(folder: Path, compiler: str, features: frozenset[str], *command: str) -> Run:
    """Compiles random_forward.c for each size of heads; the result runs them behind ``command``."""
    flags = compiler_flags(features)
    assert flags is not None
    flags = [flag for flag in flags if flag not in ("-shared", "-fPIC")]
    for heads in HEADS:
        subprocess.run(
            [compiler, *flags, "-static", "-Wall", "-Wextra", "-Werror", f"-I{KERNELS}",
             *HEADS[heads], str(HERE / "random_forward.c"), "-o", str(folder / heads), "-lm"],
            check=True, timeout=600,
        )  # fmt: skip

    @cache
    def run(dtype: str, chunk: int, heads: str) -> Logits:
        arguments = [*command, str(folder / heads), dtype, str(chunk)]
        result = subprocess.run(arguments, capture_output=True, check=True, timeout=600)
        return np.frombuffer(result.stdout, np.float32)

    return run


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Run:
    if compiler_flags(cpu_features()) is None:
        pytest.skip("needs a processor that runs the C forward")
    return built(tmp_path_factory.mktemp("own"), "gcc", cpu_features())


@pytest.fixture(scope="module", params=PROCESSORS)
def arm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    features = frozenset(PROCESSORS[request.param])
    folder = tmp_path_factory.mktemp(request.param)
    return built(folder, ARM_COMPILER, features, EMULATOR, "-cpu", "max")


@pytest.mark.parametrize("heads", list(HEADS))
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int4"])
def test_arm_computes_what_this_processor_does(arm: Run, own: Run, dtype: str, heads: str) -> None:
    expected = own(dtype, 100, heads)
    assert expected.std() > 0.3
    assert np.linalg.norm(arm(dtype, 100, heads) - expected) < 0.02 * np.linalg.norm(expected)


@pytest.mark.parametrize("heads", list(HEADS))
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int4"])
@pytest.mark.parametrize("chunk", [1, 2, 5, 17])
def test_a_row_has_the_same_bits_in_any_chunk(arm: Run, dtype: str, chunk: int, heads: str) -> None:
    assert arm(dtype, chunk, heads).tobytes() == arm(dtype, 100, heads).tobytes()
