"""Makes, checks and restores backups of this installation."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection, connections
from django.db.migrations.loader import MigrationLoader
from redis.exceptions import RedisError

from completions.jobs.connection import connect
from completions.jobs.sharding.shards import Layout
from project.backups import BackupError, archive
from project.backups.databases import Database, SQLite, choose_database
from project.processes.supervisor import AlreadyRunningError, take_lock

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Summary:
    """What a backup has."""

    made_at: str
    database: str
    migrations: int
    files: int
    has_files: bool
    """False: they are in `QUIRE_STORAGE`."""

    def __str__(self) -> str:
        files = f"{self.files} files" if self.has_files else "files stay in QUIRE_STORAGE"
        return f"made at {self.made_at}; {self.database}, {self.migrations} migrations; {files}"


def make(path: Path) -> Summary:
    """Write a backup, while the service runs. Raises BackupError or OSError."""
    database = choose_database(settings.DATABASES["default"])
    with archive.create(path) as writer, _make_folder(path.parent) as folder:
        # The database first: a file without a row is harmless, a row without its file is not.
        dump = Path(folder) / database.member
        database.dump(dump)
        writer.add_path(database.member, dump)
        dump.unlink()
        secrets = {"secret_key": settings.SECRET_KEY, "key_pepper": settings.KEY_PEPPER}
        writer.add_bytes(archive.SECRETS, json.dumps(secrets).encode())
        for name, stored in _list_files():
            try:
                writer.add_path(name, stored)
            except FileNotFoundError:  # it has expired meanwhile
                continue
        manifest = {
            "format": _FORMAT,
            "made_at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "version": _find_version(),
            "database": database.member,
            "migrations": sorted(".".join(each) for each in _list_applied()),
            "has_files": _find_files_folder() is not None,
            "sha256": dict(writer.digests),
        }
        writer.add_bytes(archive.MANIFEST, json.dumps(manifest, indent=1).encode())
    return _summarize(manifest)


def verify(path: Path) -> Summary:
    """Read a whole backup and check its database. Raises BackupError or OSError."""
    manifest = _check(path)
    with _make_folder(None) as folder:
        archive.extract(path, Path(folder), manifest["database"])
        _choose_by_member(manifest["database"]).check(Path(folder) / manifest["database"])
    return _summarize(manifest)


def restore(path: Path, replace: bool) -> tuple[Summary, Path | None]:
    """Put a backup in the place of this installation's data, which is kept aside. Returns what was
    restored, and the folder with what was replaced. Raises BackupError or OSError."""
    manifest = _check(path)
    database = choose_database(settings.DATABASES["default"])
    _require_fit(manifest, database, replace)
    with ExitStack() as stack:
        _lock_home(stack)
        folder = Path(stack.enter_context(_make_folder(settings.QUIRE_HOME)))
        archive.extract(path, folder)
        database.check(folder / manifest["database"])
        _require_secrets(folder / archive.SECRETS)
        connections.close_all()
        with _set_aside(_list_replaced(manifest["has_files"])) as aside:
            database.load(folder / manifest["database"])
            if _uses_own_secrets():
                shutil.move(folder / archive.SECRETS, settings.QUIRE_HOME / archive.SECRETS)
            files = _find_files_folder()
            if files is not None and (folder / archive.FILES).exists():
                shutil.move(folder / archive.FILES, files)
    return _summarize(manifest), aside


# Parts -------------------------------------------------------------------------------------------


def _make_folder(inside: Path | None) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix=".backup-", dir=inside)  # of mode 0700


def _find_version() -> str:
    try:
        return version("quire")
    except PackageNotFoundError:  # it runs from its checkout
        return "unknown"


def _find_files_folder() -> Path | None:
    """Return the folder of uploads and results; None where another storage has them."""
    storage = settings.STORAGES["default"]
    if not storage["BACKEND"].endswith("FileSystemStorage"):
        return None
    return Path(storage["OPTIONS"]["location"])


def _list_files() -> Iterator[tuple[str, Path]]:
    folder = _find_files_folder()
    for parent, _, names in os.walk(folder) if folder is not None else ():
        for name in names:
            path = Path(parent) / name
            yield f"{archive.FILES}{path.relative_to(str(folder))}", path


def _list_applied() -> list[tuple[str, str]]:
    return list(MigrationLoader(connection).applied_migrations)


def _summarize(manifest: dict[str, Any]) -> Summary:
    return Summary(
        made_at=manifest["made_at"],
        database=manifest["database"],
        migrations=len(manifest["migrations"]),
        files=sum(name.startswith(archive.FILES) for name in manifest["sha256"]),
        has_files=manifest["has_files"],
    )


def _check(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise BackupError(f"There is no file {path}.")
    manifest = archive.check(path)
    if manifest.get("format") != _FORMAT:
        raise BackupError(
            f"{path} has format {manifest.get('format')}; this version reads {_FORMAT}."
        )
    return manifest


def _choose_by_member(member: str) -> Database:
    """Return the kind of database that a backup has, whichever this installation uses."""
    if member == SQLite.member:
        return SQLite(Path(member))
    return choose_database({**settings.DATABASES["default"], "ENGINE": "postgresql"})


def _require_fit(manifest: dict[str, Any], database: Database, replace: bool) -> None:
    """Raise BackupError if this installation cannot take the backup."""
    if manifest["database"] != database.member:
        raise BackupError(
            f"The backup has {manifest['database']}, and this installation uses "
            f"{database.member}. Set DATABASE_URL as it was where the backup was made."
        )
    known = {".".join(each) for each in MigrationLoader(None).disk_migrations}
    newer = sorted(
        name for name in manifest["migrations"]
        if name.startswith("completions.") and name not in known
    )  # fmt: skip
    if newer:
        raise BackupError(
            f"The backup is of a newer version: it has {newer[-1]}. Install that version first."
        )
    if manifest["has_files"] and _find_files_folder() is None:
        raise BackupError("The backup has files, and QUIRE_STORAGE is set. Unset it to restore.")
    if not replace and not database.is_empty():
        raise BackupError(
            "This installation has data. Add --replace to put the backup in its place."
        )
    _require_empty_redis()


def _require_empty_redis() -> None:
    """Raise BackupError if a Redis of the operator's own has jobs: they are not of the backup."""
    if settings.VALKEY_SOCKET is not None:
        return  # its data is moved aside
    layout, found = Layout.read(settings), None
    pattern = f"{settings.REDIS_PREFIX}*"
    try:
        for address in {each.url: each for each in (layout.central, *layout.shards)}.values():
            with connect(address.url, timeout=5) as client:
                found = found or next(iter(client.scan_iter(pattern, count=1000)), None)
    except RedisError as error:
        raise BackupError(f"Redis does not answer: {error}") from error
    if found is not None:
        raise BackupError(
            f"Redis has jobs of this installation. Delete its keys {pattern} first: "
            "unfinished jobs of the backup run again from SQL."
        )


def _lock_home(stack: ExitStack) -> None:
    settings.RUN_DIR.mkdir(mode=0o700, exist_ok=True)
    try:
        take_lock(stack, settings.RUN_DIR / "up.lock")
    except AlreadyRunningError as error:
        raise BackupError(f"The service runs ({error}). Stop it first.") from error


def _uses_own_secrets() -> bool:
    """Whether secrets.json has the secrets, rather than the environment."""
    return not (os.environ.get("QUIRE_KEY_PEPPER") and os.environ.get("QUIRE_SECRET_KEY"))


def _require_secrets(path: Path) -> None:
    """Raise BackupError if the environment names another pepper: no API key would work."""
    if _uses_own_secrets() and not os.environ.get("QUIRE_KEY_PEPPER"):
        return
    if json.loads(path.read_text("utf-8"))["key_pepper"] != settings.KEY_PEPPER:
        raise BackupError(
            "QUIRE_KEY_PEPPER differs from the backup's, so no API key of the backup would work. "
            f"Set it to key_pepper in the {archive.SECRETS} of the archive."
        )


def _list_replaced(with_files: bool) -> list[Path]:
    """Return what a restored backup replaces."""
    database = settings.DATABASES["default"]
    paths = []
    if database["ENGINE"].endswith("sqlite3"):
        # With its journal, which would corrupt another database.
        paths += [Path(f"{database['NAME']}{suffix}") for suffix in ("", "-wal", "-shm")]
    if _uses_own_secrets():
        paths.append(settings.QUIRE_HOME / archive.SECRETS)
    if with_files and (files := _find_files_folder()) is not None:
        paths.append(files)
    if settings.VALKEY_SOCKET is not None:
        paths.append(settings.QUIRE_HOME / "valkey")
    return [path for path in paths if path.exists()]


@contextmanager
def _set_aside(paths: Sequence[Path]) -> Iterator[Path | None]:
    """Move paths into a folder of their own, and back if the block fails. Yields the folder; None
    if there is nothing to move."""
    if not paths:
        yield None
        return
    aside = Path(settings.QUIRE_HOME / f"replaced-{datetime.now(UTC):%Y%m%dT%H%M%S}")
    aside.mkdir(mode=0o700)
    with ExitStack() as undoing:
        undoing.callback(aside.rmdir)
        for path in paths:
            shutil.move(path, aside / path.name)
            undoing.callback(_put_back, aside / path.name, path)
        yield aside
        undoing.pop_all()  # nothing to undo


def _put_back(kept: Path, path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    shutil.move(kept, path)
