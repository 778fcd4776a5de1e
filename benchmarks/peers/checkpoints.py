"""The model in the formats of the peers, written once into the folder of their environments."""

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.peers import gguf_file
from benchmarks.peers.environments import program


class Format(Protocol):
    @property
    def environment(self) -> str:
        """The name of the environment that converts. Empty: Quire's own."""

    def convert(self, model: Path, folder: Path) -> Path:
        """Return the path of the converted model. Raises CalledProcessError."""


@dataclass(frozen=True, slots=True)
class OpenVino:
    """A folder that optimum-intel writes, with weights of one type."""

    weights: str
    environment: str = "openvino-export"

    def convert(self, model: Path, folder: Path) -> Path:
        target = _target(model, folder, f"openvino-{self.weights}")
        if not target.exists():
            unfinished = target.with_name(f"{target.name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            export = [str(program(folder, self.environment, "optimum-cli")), "export", "openvino"]
            options = ["--task", "text-generation-with-past", "--weight-format", self.weights]
            subprocess.run(
                [*export, "--model", str(model), *options, str(unfinished)],
                check=True,
                env={**os.environ, "HF_HUB_OFFLINE": "1"},
            )
            unfinished.rename(target)
        return target


@dataclass(frozen=True, slots=True)
class Gguf:
    """A GGUF file, its matrices in one type of blocks."""

    kind: str
    environment: str = ""

    def convert(self, model: Path, folder: Path) -> Path:
        target = _target(model, folder, f"{self.kind}.gguf")
        if not target.exists():
            unfinished = target.with_name(f"{target.name}.unfinished")
            gguf_file.write(model, unfinished, self.kind)
            unfinished.rename(target)
        return target


def _target(model: Path, folder: Path, name: str) -> Path:
    """Return a path that another checkpoint of the same name does not have."""
    files = sorted(model.glob("*.safetensors"))
    state = "".join(f"{file.name} {file.stat().st_mtime_ns}\n" for file in files)
    digest = hashlib.sha256(state.encode()).hexdigest()[:8]
    made = folder.absolute() / "models" / f"{model.name}-{digest}"
    made.mkdir(parents=True, exist_ok=True)
    return made / name
