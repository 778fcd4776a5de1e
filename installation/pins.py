"""`python -m installation.pins`: do the pins resolve, with wheels alone, for every Python?

uv resolves for a version without that interpreter, so one machine checks all of them.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from installation import pip_settings
from installation.environment import CONSTRAINTS, ROOT

REQUIREMENTS = ROOT / "requirements-dev.txt"
"""Includes the other requirements files."""
_UNREACHABLE = ("Failed to fetch", "Connectivity is disabled", "error sending request")
_BROUGHT_BY_TORCH = ("cuda-", "nvidia-", "triton")
"""Accelerator packages: each build of torch names its own, so they have no pins."""


class UnreachableError(Exception):
    """The package index does not answer, so nothing was checked."""


def main() -> int:
    versions = list_supported(ROOT / "pyproject.toml")
    try:
        with ThreadPoolExecutor(len(versions)) as threads:
            messages = [line for lines in threads.map(_check, versions) for line in lines]
    except UnreachableError as error:
        print(f"pins NOT CHECKED: the package index cannot be reached: {error}")
        return 3
    for message in messages:
        print(message, file=sys.stderr)
    if not messages:
        print(f"pins: resolve with wheels for Python {', '.join(versions)}")
    return 1 if messages else 0


def list_supported(project_file: Path) -> list[str]:
    """Return the Python versions of `requires-python`, which has the form ">=3.A,<3.B"."""
    requirement = tomllib.loads(project_file.read_text("utf-8"))["project"]["requires-python"]
    bounds = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", requirement)
    assert bounds is not None, f"requires-python is {requirement!r}, not of the form >=3.A,<3.B"
    return [f"3.{minor}" for minor in range(int(bounds[1]), int(bounds[2]))]


def resolve(version: str, requirements: Path, constraints: Path) -> list[str]:
    """Return the lines NAME==VERSION that uv chooses for this Python. Raises ValueError with uv's
    reason, or UnreachableError."""
    python = Path(sys.executable)
    settings = pip_settings.load_uv_settings(python)
    uv = str(python.with_name("uv"))
    command = [uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    command += ["--python-version", version, "--only-binary", ":all:", *settings.options]
    # Otherwise uv runs every interpreter on PATH in search of `version`.
    command += ["--python", str(python), str(requirements), "-c", str(constraints)]
    done = subprocess.run(  # noqa: S603
        command,
        env={**os.environ, **settings.variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        if any(sign in done.stderr for sign in _UNREACHABLE):
            raise UnreachableError(done.stderr.strip().splitlines()[-1])
        raise ValueError(done.stderr.strip())
    return [line for line in done.stdout.splitlines() if "==" in line]


def list_unpinned(resolved: Iterable[str], files: Iterable[Path]) -> list[str]:
    """Return the packages of `resolved` that no line of `files` pins."""
    lines = [line for path in files for line in path.read_text("utf-8").splitlines()]
    pinned = {_parse_name(line) for line in lines if "==" in line}
    return [
        line
        for line in resolved
        if _parse_name(line) not in pinned and not _parse_name(line).startswith(_BROUGHT_BY_TORCH)
    ]


def _check(version: str) -> list[str]:
    """Return the faults for this Python. Raises UnreachableError."""
    try:
        resolved = resolve(version, REQUIREMENTS, CONSTRAINTS)
    except ValueError as error:
        return [f"the pins do not resolve for Python {version}:\n{error}"]
    missing = list_unpinned(resolved, [*ROOT.glob("requirements*.txt"), CONSTRAINTS])
    return [
        f"{line} is not pinned (Python {version}): add it to constraints.txt" for line in missing
    ]


def _parse_name(line: str) -> str:
    """Return the package of a line NAME[EXTRA]==VERSION, normalised by PEP 503."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[=<>;\s]", line.strip())[0]).lower()


if __name__ == "__main__":
    sys.exit(main())
