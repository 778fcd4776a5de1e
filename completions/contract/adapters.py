"""LoRA adapters that are registered while workers run: how a job names one, and where its files
lie.

A job names the version that it was admitted with by the digest of its files: `name@digest`. So a
worker needs no list of adapters, and a name that means other files later changes no job. Adapters
of models.toml are named without a digest.
"""

import re
from hashlib import sha256
from pathlib import Path
from typing import Final

CONFIG_FILE: Final = "adapter_config.json"
WEIGHTS_FILE: Final = "adapter_model.safetensors"
RETIRED_FILE: Final = "retired"
"""An empty file in the folder of a version that no name means any more. Workers free its weights
once their last job with it has ended."""
_REFERENCE = re.compile(r"(?P<name>.+)@(?P<digest>[0-9a-f]{64})", re.DOTALL)
_CHUNK = 1 << 20


def make_reference(name: str, digest: str) -> str:
    """Return how a job names a registered adapter."""
    return f"{name}@{digest}"


def read_digest(reference: str) -> str | None:
    """Return the digest in a reference; None for an adapter of models.toml."""
    match = _REFERENCE.fullmatch(reference)
    return match["digest"] if match else None


def read_name(reference: str) -> str:
    """Return the name that clients use."""
    match = _REFERENCE.fullmatch(reference)
    return match["name"] if match else reference


def compute_digest(folder: Path) -> str:
    """Return the SHA-256 of an adapter's two files, in hex. Raises OSError."""
    digest = sha256()
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        path = folder / name
        digest.update(path.stat().st_size.to_bytes(8, "big"))
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()
