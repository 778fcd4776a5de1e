"""Archives of packages, fetched with npm and pip from the registries that they are set up for."""

import base64
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path


class FetchError(Exception):
    """A package cannot be fetched here. The message says why."""


def fetch_from_npm(spec: str, sha512: str, into: Path) -> Path:
    """Return the archive of a package such as `name@version`. Raises FetchError, and
    AssertionError for an archive of another checksum, which is in base64."""
    npm = shutil.which("npm")
    if npm is None:
        raise FetchError("npm is not installed")
    command = [npm, "pack", spec, "--ignore-scripts", "--loglevel=error"]
    command += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
    command += [f"--pack-destination={into}", f"--cache={into / 'cache'}"]
    error = _run(command, spec, into)
    archives = list(into.glob("*.tgz"))
    if not archives:
        raise FetchError(f"npm cannot fetch {spec}: {error}")
    digest = base64.b64encode(hashlib.sha512(archives[0].read_bytes()).digest()).decode()
    assert digest == sha512, f"{spec} has the SHA-512 {digest}"
    return archives[0]


def fetch_wheel(spec: str, sha256: str, into: Path) -> Path:
    """Return the wheel of a package such as `name==version`, which pip compares with its checksum.
    Raises FetchError."""
    command = [*_download(spec, sha256, into), "--only-binary=:all:", f"--dest={into}"]
    error = _run(command, spec, into)
    wheels = list(into.glob("*.whl"))
    if not wheels:
        raise FetchError(f"pip cannot fetch {spec}: {error}")
    return wheels[0]


def fetch_source(spec: str, sha256: str, into: Path) -> Path:
    """Return the folder of a package's source distribution, which pip compares with its checksum.
    Raises FetchError.

    pip unpacks a source distribution, then asks its build system what it needs. That system is not
    installed, so pip fails there, and leaves what it unpacked.
    """
    command = [*_download(spec, sha256, into), "--no-binary=:all:", "--no-build-isolation"]
    error = _run([*command, "--no-clean", f"--dest={into}"], spec, into, {"TMPDIR": str(into)})
    folders = [path.parent for path in into.glob("pip-download-*/*/PKG-INFO")]
    if not folders:
        raise FetchError(f"pip cannot fetch {spec}: {error}")
    return folders[0]


def _download(spec: str, sha256: str, into: Path) -> list[str]:
    listed = into / "requirements.txt"
    listed.write_text(f"{spec} --hash=sha256:{sha256}\n")
    options = ["--no-deps", "--require-hashes", "--retries=1", "--no-cache-dir"]
    return [sys.executable, "-m", "pip", "download", *options, f"--requirement={listed}"]


def _run(command: list[str], spec: str, into: Path, more: dict[str, str] | None = None) -> str:
    """Run a command, and return the last of what it says of a failure."""
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=300, cwd=into,
            env={**os.environ, **(more or {})},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"the registry does not send {spec} in time") from error
    return " ".join(ended.stderr.split())[-200:] if ended.returncode else ""
