"""The store of registered adapters: copies of PEFT folders, each under the digest of its files.

A copy never changes, so a job that was admitted with it gets the same weights after a restart of
its worker, whatever has become of the folder that it was loaded from. The engine reads it; here,
only sizes and names are checked.
"""

import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from completions.contract.adapters import (
    CONFIG_FILE,
    RETIRED_FILE,
    WEIGHTS_FILE,
    compute_digest,
)

_MAX_CONFIG_BYTES = 1 << 20
_MAX_HEADER_BYTES = 16 << 20
_CHUNK = 1 << 20
_SHOWN = 100
"""The most characters of a wrong value in a message."""
_DRAFT = ".draft-"
_LEFT_SECONDS = 3600.0
"""Age of a folder without a registration after which it is deleted."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_DTYPES = ("F32", "F16", "BF16")


class AdapterError(Exception):
    """The folder has no adapter that can be loaded. The message says why."""


class AdapterNotFoundError(AdapterError):
    """There is no such folder for this organization, or it lies elsewhere."""


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    bytes: int
    rank: int


@dataclass(frozen=True, slots=True)
class StoredAdapter:
    digest: str
    rank: int
    bytes: int


def find_source(root: Path, organization: str, given: str) -> Path:
    """Return the folder that a client's path means: absolute, or relative to the organization's own
    folder in `root`. Raises AdapterNotFoundError unless it lies there, symbolic links followed."""
    if organization in ("", ".", "..") or "/" in organization or "\0" in organization:
        raise AdapterNotFoundError(
            f"the organization's name {organization!r} names no folder; ask your administrator to "
            "change it"
        )
    own = root / organization
    try:
        folder = (own / given).resolve(strict=True)
        is_own = folder.is_relative_to(own.resolve(strict=True)) and folder.is_dir()
    except (OSError, ValueError, RuntimeError):
        is_own = False
    if not is_own:
        raise AdapterNotFoundError(f"there is no folder {given[:200]!r} in {own}")
    return folder


@contextmanager
def copy_adapter(
    source: Path, own: Path, store: Path, limits: AdapterLimits
) -> Iterator[StoredAdapter]:
    """Copy an adapter into the store, unless it is there already. Its files must lie in `own`. It
    is not kept if the block under `with` raises an exception.

    Raises AdapterError, and OSError if the store cannot be written."""
    store.mkdir(mode=0o755, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store, prefix=_DRAFT) as name:
        draft = Path(name)
        _copy(source / CONFIG_FILE, own, draft / CONFIG_FILE, _MAX_CONFIG_BYTES)
        _copy(source / WEIGHTS_FILE, own, draft / WEIGHTS_FILE, limits.bytes)
        _check_config(draft / CONFIG_FILE)
        rank = _read_rank(draft / WEIGHTS_FILE)
        if rank > limits.rank:
            raise AdapterError(f"its rank is {rank}; it may be at most {limits.rank}")
        stored = StoredAdapter(compute_digest(draft), rank, (draft / WEIGHTS_FILE).stat().st_size)
        yield stored
        _keep(draft, store / stored.digest)


def mark_retired(store: Path, active: Collection[str], digests: Collection[str]) -> None:
    """Note for workers which of these digests no name means any more. Raises OSError."""
    for digest in digests:
        folder = store / digest
        if digest in active:
            (folder / RETIRED_FILE).unlink(missing_ok=True)
        elif folder.is_dir():
            (folder / RETIRED_FILE).touch()


def delete_left(store: Path, needed: Collection[str]) -> int:
    """Delete folders that no registration needs, and drafts of processes that have ended. Returns
    their number."""
    deleted = 0
    for folder in list(store.iterdir()) if store.is_dir() else ():
        is_left = folder.name.startswith(_DRAFT) or (
            _DIGEST.fullmatch(folder.name) and folder.name not in needed
        )
        if is_left and time.time() - folder.stat().st_mtime > _LEFT_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
            deleted += 1
    return deleted


def _copy(path: Path, own: Path, target: Path, max_bytes: int) -> None:
    with _open_regular(path, own) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise AdapterError(f"{path.name} has {size} bytes; it may have at most {max_bytes}")
        left = size
        with target.open("wb") as copy:
            while left and (chunk := file.read(min(left, _CHUNK))):
                left -= copy.write(chunk)
            copy.flush()
            os.fsync(copy.fileno())
        if left:
            raise AdapterError(f"{path.name} changed while it was read; try again")


@contextmanager
def _open_regular(path: Path, own: Path) -> Iterator[IO[bytes]]:
    """Open a file in `own`. A pipe or a device could block or never end."""
    try:
        real, root = path.resolve(strict=True), own.resolve(strict=True)
        if not real.is_relative_to(root):
            raise AdapterError(f"{path.name} lies outside {own}")
        with open(_open_beneath(root, real.relative_to(root)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise AdapterError(f"{path.name} is not a file")
            yield file
    except FileNotFoundError as error:
        raise AdapterError(f"it has no {path.name}") from error
    except OSError as error:
        raise AdapterError(f"{path.name} cannot be read: {error.strerror}") from error


def _open_beneath(root: Path, path: Path) -> int:
    """Open a file without following any link below `root`: a folder on the way may have become
    one since its path was resolved. Returns a descriptor. Raises OSError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for name in path.parts[:-1]:
        try:
            inner = os.open(name, flags | os.O_DIRECTORY, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    try:
        return os.open(path.name, flags, dir_fd=folder)
    finally:
        os.close(folder)


def _check_config(path: Path) -> None:
    try:
        config = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise AdapterError(f"{CONFIG_FILE} is not JSON: {error}") from error
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind != "LORA":
        shown = repr(kind)[:_SHOWN] if isinstance(kind, str | None) else f"a {type(kind).__name__}"
        raise AdapterError(f"{CONFIG_FILE} has the peft_type {shown}; only LORA is supported")


def _read_rank(path: Path) -> int:
    """Return the largest rank in a safetensors file, from its header
    (https://github.com/huggingface/safetensors#format)."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(_MAX_HEADER_BYTES, path.stat().st_size - 8):
            raise AdapterError(f"{WEIGHTS_FILE} is not in safetensors' format")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise AdapterError(f"{WEIGHTS_FILE} has a header that is not JSON") from error
    if not isinstance(header, dict):
        raise AdapterError(f"{WEIGHTS_FILE} has a header that is no JSON object")
    ranks = [_read_shape(name, each) for name, each in header.items() if name != "__metadata__"]
    if not ranks:
        raise AdapterError(f"{WEIGHTS_FILE} has no weights")
    return max(ranks)


def _read_shape(name: str, tensor: Mapping[str, object] | object) -> int:
    """Return the rank that one tensor's shape [rank, in] or [out, rank] shows."""
    shape = tensor.get("shape") if isinstance(tensor, dict) else None
    is_matrix = isinstance(shape, list) and [type(each) for each in shape] == [int, int]
    if not isinstance(tensor, dict) or not is_matrix or tensor.get("dtype") not in _DTYPES:
        raise AdapterError(f"{name[:200]} is not a matrix of {', '.join(_DTYPES)}")
    assert isinstance(shape, list)
    return int(min(shape))


def _keep(draft: Path, folder: Path) -> None:
    """Move a draft to its place. One that is there already counts as new, if its files are whole;
    a damaged one is replaced."""
    draft.chmod(0o755)
    if folder.is_dir() and not _is_whole(folder):
        shutil.rmtree(folder, ignore_errors=True)
    try:
        os.utime(folder)
    except FileNotFoundError:
        try:
            os.rename(draft, folder)
            draft.mkdir()  # for the end of TemporaryDirectory
        except OSError:  # another process was faster
            os.utime(folder)


def _is_whole(folder: Path) -> bool:
    try:
        return compute_digest(folder) == folder.name
    except OSError:
        return False
