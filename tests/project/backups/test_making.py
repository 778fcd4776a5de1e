"""Backups of a real installation: made, verified and restored, on both databases."""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import redis
from pytest_django.fixtures import Settings

from project.backups import BackupError, making
from tests.acceptance.service import ROOT
from tests.conftest import PrivateValkey
from tests.postgresql import new_database
from tests.representatives import stand_for_all

_RUN = """
import io, json, sys
import django
from django.core.management import CommandError, call_command
django.setup()
answers = []
for command in json.loads(sys.argv[1]):
    if command[0] == "python":
        names = {"answer": None}
        exec(command[1], names)
        answers.append(names["answer"])
        continue
    output = io.StringIO()
    try:
        call_command(*command, stdout=output)
    except CommandError as error:
        output.write(f"refused: {error}")
    answers.append(output.getvalue())
print("\\n" + json.dumps(answers))
"""
_FILL = """
from django.conf import settings
from completions.accounts import changes
from datetime import timedelta
from django.utils.timezone import now
from completions.models import ApiKey, Batch, BatchLine, Organization
organization = Organization.objects.create(name="kept")
answer = changes.create(organization, "kept")[1]
parts = {model: {"plan": {"prompt_tokens": 1}, "most": 2, "lines": 1} for model in ("a", "b/c")}
batch = Batch.objects.create(
    organization=organization, api_key=ApiKey.objects.get(), by_model=parts, status="in_progress",
    completion_window="30m", output_seconds=60, expires_at=now() + timedelta(minutes=30), total=2,
    promise={"seconds": 9, "is_promised": True}, outlook={"turns": {"a": 1, "b/c": 0}},
)
BatchLine.objects.bulk_create(
    BatchLine(batch=batch, number=n, custom_id=model, model=model, job=b"1", state=n)
    for n, model in enumerate(parts)
)
folder = settings.QUIRE_HOME / "files" / "ab"
folder.mkdir(parents=True)
(folder / "one.jsonl").write_bytes(b"{}" * 1000)
(settings.QUIRE_HOME / "valkey").mkdir(exist_ok=True)
(settings.QUIRE_HOME / "valkey" / "appendonly.aof").write_bytes(b"jobs of the replaced home")
"""
_FIND_BATCH = """
from completions.models import Batch
batch = Batch.objects.get()
lines = batch.lines.order_by("number").values_list("model", "state")
answer = [batch.model_ids, batch.completion_window, batch.promise, batch.outlook, list(lines)]
"""
_BATCH = [
    ["a", "b/c"], "30m", {"seconds": 9, "is_promised": True}, {"turns": {"a": 1, "b/c": 0}},
    [["a", 0], ["b/c", 1]],
]  # fmt: skip
_VERIFY = """
import asyncio
from completions.accounts.keys import KeyRing
answer = type(asyncio.run(KeyRing().verify({secret!r}))).__name__
"""
_ADD_TABLE = """
from django.db import connection
from completions.models import Refusal
# As a later migration would: a table that the backup lacks refers to one that it has.
with connection.cursor() as cursor:
    cursor.execute("CREATE TABLE completions_later (id bigint REFERENCES completions_organization)")
"""
Manage = Callable[..., list[str]]


def manage(home: Path, *commands: Sequence[str], database: str = "", pepper: str = "") -> list[str]:
    """Run commands in one process. Returns what each of them printed."""
    given = {"QUIRE_HOME": str(home), "DJANGO_SETTINGS_MODULE": "project.settings"}
    more = {"DATABASE_URL": database, "QUIRE_KEY_PEPPER": pepper}
    more |= {"QUIRE_SECRET_KEY": pepper and "s" * 50}
    environment = {**os.environ, **given, **{name: text for name, text in more.items() if text}}
    done = subprocess.run(
        [sys.executable, "-c", _RUN, json.dumps(commands)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers: list[str] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A home, a backup of it, and the secret of its key."""
    home = tmp_path_factory.mktemp("home")
    path = tmp_path_factory.mktemp("backups") / "one.tar"
    _, secret, typo, missing, made, again, verified = manage(
        home,
        ["migrate"],
        ["python", _FILL],
        ["backup", str(path.with_suffix(""))],
        ["backup", str(path.parent / "none" / "one.tar")],
        ["backup", str(path)],
        ["backup", str(path)],
        ["verify_backup", str(path)],
    )
    assert "is no folder" in typo
    assert "is no folder" in missing
    assert "quire.sqlite3" in made
    assert "1 files" in made
    assert "exists" in again
    assert "is whole" in verified
    return home, path, secret


def test_only_its_user_can_read_a_backup(backup: tuple[Path, Path, str]) -> None:
    _, path, _ = backup
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["one.tar"]  # no draft is left
    with tarfile.open(path) as tar:
        names = tar.getnames()
    assert names == ["quire.sqlite3", "secrets.json", "files/ab/one.jsonl", "manifest.json"]


@pytest.mark.wide
def test_a_new_home_takes_a_backup(backup: tuple[Path, Path, str], tmp_path: Path) -> None:
    _, path, secret = backup
    (restored,) = manage(tmp_path, ["restore", str(path)])
    assert "Restored" in restored
    assert (tmp_path / "files" / "ab" / "one.jsonl").read_bytes() == b"{}" * 1000
    assert (tmp_path / "secrets.json").stat().st_mode & 0o777 == 0o600
    # In a process of its own: the settings of the first one had drawn other secrets.
    assert manage(tmp_path, ["python", _VERIFY.format(secret=secret)]) == ["Principal"]
    assert manage(tmp_path, ["python", _FIND_BATCH]) == [_BATCH]
    assert [each.name for each in tmp_path.glob(".backup-*")] == []


def test_data_is_replaced_only_on_request_and_kept_aside(
    backup: tuple[Path, Path, str], tmp_path: Path
) -> None:
    home, path, _ = backup
    other = tmp_path / "home"
    shutil.copytree(home, other)
    change = "from completions.models import Organization; Organization.objects.update(name='new')"
    refused, *_ = manage(other, ["restore", str(path)], ["python", change])
    assert "Add --replace" in refused
    (restored,) = manage(other, ["restore", str(path), "--replace"])
    assert "delete it once all is well" in restored
    (aside,) = other.glob("replaced-*")
    assert {"quire.sqlite3", "secrets.json", "files", "valkey"} <= {p.name for p in aside.iterdir()}
    assert not (other / "valkey").exists()
    find = "from completions.models import Organization; answer = Organization.objects.get().name"
    assert manage(other, ["python", find]) == ["kept"]


@pytest.mark.represented_by("cut")
@pytest.mark.parametrize(
    "damage", stand_for_all(["cut", "changed"], ["cut", "changed", "not a tar", "no file"])
)
def test_a_damaged_backup_is_refused(
    backup: tuple[Path, Path, str], tmp_path: Path, damage: str
) -> None:
    _, path, _ = backup
    damaged = tmp_path / "damaged.tar"
    content = bytearray(path.read_bytes())
    if damage == "cut":
        del content[len(content) // 2 :]
    elif damage == "changed":
        content[len(content) // 3] ^= 1
    elif damage == "not a tar":
        content = bytearray(b"x" * 2000)
    if damage != "no file":
        damaged.write_bytes(content)
    home = tmp_path / "home"
    verified, restored = manage(home, ["verify_backup", str(damaged)], ["restore", str(damaged)])
    for answer in (verified, restored):
        assert answer.startswith("refused: "), answer
    assert not (home / "quire.sqlite3").exists()


@pytest.mark.wide
def test_a_running_service_is_not_restored_under(
    backup: tuple[Path, Path, str], tmp_path: Path
) -> None:
    _, path, _ = backup
    hold = (
        "import fcntl, os; from django.conf import settings; settings.RUN_DIR.mkdir();"
        "fcntl.flock(os.open(settings.RUN_DIR / 'up.lock', os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX)"
    )
    _, refused = manage(tmp_path, ["python", hold], ["restore", str(path)])
    assert "Stop it first" in refused


@pytest.mark.wide
def test_another_pepper_would_make_all_keys_useless(
    backup: tuple[Path, Path, str], tmp_path: Path
) -> None:
    _, path, _ = backup
    (refused,) = manage(tmp_path, ["restore", str(path)], pepper="p" * 50)
    assert "QUIRE_KEY_PEPPER differs" in refused


@pytest.mark.wide
@pytest.mark.skipif(not shutil.which("pg_dump"), reason="pg_dump is not installed")
def test_postgresql(tmp_path: Path, backup: tuple[Path, Path, str]) -> None:
    """The embedded Valkey remains, so that no server of this machine is asked."""
    path = tmp_path / "backup.tar"
    with new_database() as url:
        change = "from completions.models import Organization as O; O.objects.update(name='new')"
        find = "from completions.models import Organization as O; answer = O.objects.get().name"
        commands = [
            ["migrate"],
            ["python", _FILL],
            ["backup", str(path)],
            ["verify_backup", str(path)],
            ["python", change],
            ["python", _ADD_TABLE],
            ["restore", str(path)],
            ["restore", str(path), "--replace"],
            ["python", find],
            ["python", _FIND_BATCH],
            ["restore", str(backup[1])],
        ]
        home = tmp_path / "home"
        _, _, made, verified, _, _, refused, restored, name, batch, other = manage(
            home, *commands, database=url
        )
    assert "quire.dump" in made
    assert "is whole" in verified
    assert "Add --replace" in refused
    assert "Restored" in restored
    assert name == "kept"
    assert batch == _BATCH
    assert "Set DATABASE_URL as it was" in other


@pytest.mark.integration
def test_a_redis_with_jobs_must_be_emptied_first(
    valkey: PrivateValkey, redis_client: redis.Redis, settings: Settings
) -> None:
    settings.VALKEY_SOCKET, settings.REDIS_URL = None, valkey.url
    making._require_empty_redis()
    redis_client.set(f"{settings.REDIS_PREFIX}open", "")
    with pytest.raises(BackupError, match="Delete its keys"):
        making._require_empty_redis()


@pytest.mark.parametrize("kind", ["symlink", "outside", "no digests", "no object"])
def test_another_archive_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "other.tar"
    manifest: dict[str, object] | list[object] = {"format": 1, "sha256": {}}
    with tarfile.open(path, "w") as tar:
        if kind == "symlink":
            link = tarfile.TarInfo("files/a")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(link)
        elif kind == "outside":
            tar.addfile(tarfile.TarInfo("../../evil"))
        elif kind == "no digests":
            manifest = {"format": 1}
        else:
            manifest = []
        content = json.dumps(manifest).encode()
        info = tarfile.TarInfo("manifest.json")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    with pytest.raises(BackupError):
        making.verify(path)
