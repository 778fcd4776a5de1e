"""Writes and checks the archive of a backup."""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from project.backups import BackupError

MANIFEST = "manifest.json"
SECRETS = "secrets.json"
FILES = "files/"
"""The beginning of the names of an installation's files."""
_PART = 1 << 20


class Writer:
    """An archive that is being written."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self.digests: dict[str, str] = {}
        """The SHA-256 of each member, in hex."""

    def add_path(self, name: str, path: Path) -> None:
        """Add a file. Raises OSError."""
        with path.open("rb") as content:
            info = self._tar.gettarinfo(arcname=name, fileobj=content)
            self._add(info, content)

    def add_bytes(self, name: str, content: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        self._add(info, io.BytesIO(content))

    def _add(self, info: tarfile.TarInfo, content: IO[bytes]) -> None:
        info.mode = 0o600
        hashing = _Hashing(content)
        self._tar.addfile(info, hashing)
        self.digests[info.name] = hashing.digest.hexdigest()


class _Hashing(io.RawIOBase):
    """A file that hashes what is read from it."""

    def __init__(self, content: IO[bytes]) -> None:
        self._content = content
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        part = self._content.read(size)
        self.digest.update(part)
        return part


@contextmanager
def create(path: Path) -> Iterator[Writer]:
    """Write an archive that only this user may read. It appears at `path` once it is whole. Raises
    OSError."""
    draft = path.with_name(f"{path.name}.partial")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)  # whatever an earlier draft had
        with os.fdopen(descriptor, "wb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                yield Writer(tar)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            draft.unlink()
        raise


def check(path: Path) -> dict[str, Any]:
    """Read the whole archive. Returns its manifest. Raises BackupError for one that is cut off or
    damaged."""
    try:
        with tarfile.open(path, "r:") as tar:
            digests, manifest = _hash_members(tar)
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise BackupError(f"{path} is not a whole backup: {error}. Use another one.") from error
    if manifest is None:
        raise BackupError(f"{path} was cut off: it has no {MANIFEST}. Use another one.")
    stated = manifest.get("sha256") if isinstance(manifest, dict) else None
    if not isinstance(stated, dict):
        raise BackupError(f"{path} is no backup of Quire: its {MANIFEST} is another's.")
    wrong = sorted(
        name for name in stated.keys() | digests.keys() if stated.get(name) != digests.get(name)
    )
    if wrong:
        raise BackupError(f"{path} is damaged: {', '.join(wrong[:5])}. Use another one.")
    return manifest


def _hash_members(tar: tarfile.TarFile) -> tuple[dict[str, str], dict[str, Any] | None]:
    digests: dict[str, str] = {}
    manifest = None
    for member in tar:
        content = tar.extractfile(member) if member.isreg() else None
        if content is None or member.name != os.path.normpath(member.name).lstrip("./"):
            raise BackupError(f"{member.name} is no plain file inside a backup. Use another one.")
        if member.name == MANIFEST:
            manifest = json.load(content)
            continue
        digest = hashlib.sha256()
        while part := content.read(_PART):
            digest.update(part)
        digests[member.name] = digest.hexdigest()
    return digests, manifest


def extract(path: Path, folder: Path, only: str | None = None) -> None:
    """Extract a checked archive, or one member of it, into a folder. Raises OSError."""
    with tarfile.open(path, "r:") as tar:
        extract_all(tar, folder, None if only is None else [tar.getmember(only)])


def extract_all(
    tar: tarfile.TarFile, folder: Path, members: list[tarfile.TarInfo] | None = None
) -> None:
    """Extract an archive, or these members, into a folder: plain data only, where Python can refuse
    the rest. Before 3.11.4 it has no argument for that."""
    if hasattr(tarfile, "data_filter"):
        tar.extraction_filter = tarfile.data_filter
    tar.extractall(folder, members)  # noqa: S202 - filtered by the attribute
