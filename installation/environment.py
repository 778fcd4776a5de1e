"""The virtual environment: made once, filled by uv, or by pip if uv does not work."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from installation import pip_settings

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
UV_REQUIREMENTS = ROOT / "requirements-setup.txt"

Write = Callable[[str], object]


class SetupError(Exception):
    """The environment cannot be made or filled. The message says why and what to do."""


def prepare(venv: Path, requirements: Path, write: Write) -> None:
    """Make `venv` with the running interpreter if needed and install `requirements` into it.

    Raises SetupError.
    """
    if not _is_usable(venv):
        write(f"Making {venv} with Python {sys.version.split()[0]} ({sys.executable})\n")
        _make(venv)
    python = venv / "bin" / "python"
    write(f"Installing the packages of {requirements}\n")
    reason = _install_with_uv(python, requirements)
    if reason is not None:
        write(f"{reason}; pip installs the packages instead, which takes longer\n")
        _install_with_pip(python, requirements)


def _is_usable(venv: Path) -> bool:
    """Return whether `venv` works and has the version of the running interpreter."""
    if Path(sys.prefix).resolve() == venv.resolve():
        return True
    program = "import sys; print(*sys.version_info[:2])"
    try:
        result = subprocess.run(  # noqa: S603
            [venv / "bin" / "python", "-c", program], capture_output=True, text=True, check=False
        )
    except OSError:
        return False
    return result.stdout.split() == [str(part) for part in sys.version_info[:2]]


def _make(venv: Path) -> None:
    if _run([sys.executable, "-m", "venv", "--clear", str(venv)]) != 0:
        raise SetupError(
            f"{sys.executable} cannot make virtual environments: install its venv package "
            "(Debian: python3-venv), or name another interpreter with make PYTHON=..."
        )


def _install_with_uv(python: Path, requirements: Path) -> str | None:
    """Return None on success, otherwise why uv failed."""
    bootstrap = [str(python), "-m", "pip", "install", "--quiet", "-r", str(UV_REQUIREMENTS)]
    if _run(bootstrap) != 0:
        return "uv cannot be installed from the package index of pip"
    uv = python.with_name("uv")
    settings = pip_settings.load_uv_settings(python)
    command = [str(uv), "pip", "install", "--python", str(python), *settings.options]
    command += ["-r", str(requirements), "-c", str(CONSTRAINTS)]
    # Without bytecode, each start by a user who cannot write to `.venv` takes seconds longer.
    if _run(command, {"UV_COMPILE_BYTECODE": "1", **settings.variables, **os.environ}) != 0:
        return "uv cannot install the packages"
    return None


def _install_with_pip(python: Path, requirements: Path) -> None:
    command = [str(python), "-m", "pip", "install", "--progress-bar", "on"]
    if _run([*command, "-r", str(requirements), "-c", str(CONSTRAINTS)]) != 0:
        raise SetupError(
            "The packages cannot be installed. Check that this machine reaches its package index "
            f"({python} -m pip config list shows the settings), then run make again."
        )


def _run(command: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Return the exit code; 127 if the program is missing."""
    try:
        return subprocess.run(command, env=env, check=False).returncode  # noqa: S603
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
