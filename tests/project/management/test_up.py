"""`manage.py up` as a process of its own, with the embedded Valkey and without a model."""

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from project.management.commands.up import explain_failures
from project.processes.supervisor import Backoff, Service, Supervisor
from tests.representatives import stand_for_all

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 240.0

pytestmark = pytest.mark.integration


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    """An installation of its own whose only model is a folder without weights."""
    model = tmp_path / "models" / "tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"vocab_size": 10, "max_position_embeddings": 64}')
    (model / "tokenizer.json").write_text("{}")
    (tmp_path / "models.toml").write_text('[models.tiny]\npath = "tiny"\n')
    ours = ("DATABASE_URL", "REDIS_URL", "PORT", "DJANGO_SETTINGS_MODULE")
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    own = {"QUIRE_HOME": str(tmp_path), "QUIRE_MODELS": str(tmp_path / "models.toml")}
    return {**inherited, **own}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "manage.py", "up", *arguments]


def refused(environment: dict[str, str], *arguments: str) -> str:
    """What `up` says when it does not start."""
    done = subprocess.run(
        command(*arguments),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize("name", stand_for_all(["run"], ["log", "run", "valkey"]))
def test_a_file_in_place_of_a_folder_is_named(environment, tmp_path, name):
    (tmp_path / name).touch()
    assert f"{tmp_path / name} must be a folder. Move the file away." in refused(environment)


def test_a_variable_of_celery_is_named(environment):
    environment["CELERY_BROKER_URL"] = "redis://127.0.0.1:1/0"
    assert refused(environment).startswith("CELERY_BROKER_URL is set: ")


@contextmanager
def running(
    environment: dict[str, str], *arguments: str, limit: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """`up`, from when the database is migrated until it is stopped. `limit` is of open files,
    which it may raise."""
    shell = ["sh", "-c", f'ulimit -S -n {limit}; exec "$@"', "sh"] if limit else []
    with subprocess.Popen(
        [*shell, *command(*arguments)],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def pid_of_valkey(home: Path) -> int:
    path = home / "run" / "valkey.pid"
    assert eventually(path.exists)
    return int(path.read_text())


def read_until(process: subprocess.Popen[str], pattern: str) -> str:
    """The first line of output that matches."""
    assert process.stdout is not None
    for line in process.stdout:
        if re.search(pattern, line):
            return line
    raise AssertionError(f"it ended without saying {pattern}")


def test_the_first_start_shows_a_key_and_a_later_one_does_not(environment, tmp_path):
    with running(environment, "--only", "cpu-worker") as process:
        assert re.fullmatch(r"sk-\S+\n", read_until(process, "^sk-"))
    with running(environment, "--only", "cpu-worker") as process:
        assert eventually((tmp_path / "run" / "cpu-worker.pid").exists)
        process.terminate()
        output = process.stdout.read()
    assert "sk-" not in output
    assert process.returncode == 0


@pytest.mark.parametrize("number", stand_for_all([signal.SIGTERM], [signal.SIGINT, signal.SIGTERM]))
def test_a_signal_stops_everything_without_a_traceback(environment, tmp_path, number):
    with running(environment, "--only", "valkey") as process:
        valkey = pid_of_valkey(tmp_path)
        process.send_signal(number)
        output = process.stdout.read()
        assert process.wait(PATIENCE) == 0
    assert "Traceback" not in output
    assert output.splitlines()[-1].endswith("stopped")
    assert not Path(f"/proc/{valkey}").exists()
    assert os.listdir(tmp_path / "run") == ["up.lock"]


@pytest.mark.wide
def test_its_processes_may_have_as_many_connections_as_the_system_lets(environment, tmp_path):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with running(environment, "--only", "valkey", limit=256):
        pid = pid_of_valkey(tmp_path)
        (line,) = re.findall(r"Max open files.*", Path(f"/proc/{pid}/limits").read_text())
        assert int(line.split()[3]) == min(hard, 65536)


def test_a_redis_that_does_not_answer_is_named_without_its_password(tmp_path, settings):
    settings.REDIS_URL = "redis://user:secret@far:6380/1?password=secret"
    with Supervisor(tmp_path, print) as supervisor:
        reasons = explain_failures({"redis": "does not answer"}, supervisor)
    assert reasons == "redis: does not answer at redis://far:6380/1"


def test_a_web_server_that_starts_is_said_to(tmp_path):
    with Supervisor(tmp_path, print, Backoff(first=0.02)) as supervisor:
        supervisor.start(Service("web", ("sleep", "1000")))
        reasons = explain_failures({"web": "does not answer"}, supervisor)
    assert reasons == f"web: starts (log: {tmp_path}/log/web.log)"


@pytest.mark.wide
def test_a_start_says_what_it_waits_for(environment):
    with running(environment, "--only", "valkey,cpu-worker") as process:
        said = ""
        while "bringing the tables of the database up to date" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line


def test_a_worker_that_starts_is_said_to_load_its_model(tmp_path):
    unserved = {"worker": "no worker that takes new jobs serves any of: tiny"}
    with Supervisor(tmp_path, print, Backoff(first=0.02)) as supervisor:
        assert explain_failures(unserved, supervisor) == f"worker: {unserved['worker']}"
        supervisor.start(Service("worker", ("sleep", "1000")))
        loading = f"worker: loads its model (log: {tmp_path}/log/worker.log)"
        assert explain_failures(unserved, supervisor) == loading
        supervisor.stop()
        supervisor.start(Service("worker", ("false",)))
        assert supervisor.wait_until(supervisor.list_failing, PATIENCE)
        assert explain_failures(unserved, supervisor) == f"worker: {unserved['worker']}"


@pytest.mark.wide
def test_killing_it_leaves_no_process_and_no_obstacle(environment, tmp_path):
    with running(environment, "--only", "valkey") as process:
        valkey = pid_of_valkey(tmp_path)
        process.kill()
        assert eventually(lambda: not Path(f"/proc/{valkey}").exists())
    with running(environment, "--only", "valkey"):
        assert eventually(lambda: pid_of_valkey(tmp_path) != valkey)


@pytest.mark.wide
def test_a_killed_service_comes_back(environment, tmp_path):
    with running(environment, "--only", "valkey") as process:
        killed = pid_of_valkey(tmp_path)
        os.kill(killed, signal.SIGKILL)
        line = read_until(process, "valkey was killed")
        assert "SIGKILL" in line
        assert "starting it again in 0.5 s" in line
        assert eventually(lambda: pid_of_valkey(tmp_path) != killed)


@pytest.mark.wide
def test_a_home_has_one_up(environment, tmp_path):
    with running(environment, "--only", "valkey"):
        pid_of_valkey(tmp_path)
        assert f"{tmp_path} is in use" in refused(environment, "--only", "valkey")


def test_a_missing_model_is_named_with_the_remedy(environment, tmp_path):
    (tmp_path / "models" / "tiny" / "config.json").unlink()
    message = refused(environment)
    assert f"tiny in {tmp_path}/models/tiny" in message
    assert "prepare_model" in message
    assert not (tmp_path / "valkey").exists()


@pytest.mark.wide
def test_a_model_that_cannot_be_served_is_named_before_anything_starts(environment, tmp_path):
    (tmp_path / "models" / "tiny" / "config.json").write_text('{"vocab_size": 10}')
    assert "model tiny: " in refused(environment)
    assert "set max_model_len in models.toml" in refused(environment)
    assert not (tmp_path / "valkey").exists()


def test_a_taken_port_is_named_before_anything_starts(environment, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        message = refused({**environment, "PORT": port})
    assert f"cannot listen on 127.0.0.1:{port}" in message
    assert not (tmp_path / "log" / "valkey.log").exists()


@pytest.mark.wide
@pytest.mark.parametrize("port", stand_for_all(["65536"], ["0", "65536", "http"]))
def test_a_port_that_does_not_exist_is_refused(environment, port):
    message = refused({**environment, "PORT": port})
    assert f"'{port}' is not a port; use a number from 1 to 65535" in message


@pytest.mark.wide
def test_an_unknown_service_is_refused(environment):
    assert "'wbe' is not a service; use some of valkey, worker, cpu-worker, web" in refused(
        environment, "--only", "wbe"
    )


@pytest.mark.wide
def test_a_broken_catalogue_is_refused(environment, tmp_path):
    (tmp_path / "models.toml").write_text("[models")
    assert "models.toml" in refused(environment)


@pytest.mark.wide
def test_what_it_writes_is_for_its_own_user_alone(environment, tmp_path):
    """Database, logs, append-only file: whatever the umask says, where others may look."""
    given = {"models", "models.toml"}
    tmp_path.chmod(0o755)
    before = os.umask(0)
    try:
        with running(environment, "--only", "cpu-worker") as process:
            assert any("sk-" in line for line in process.stdout)  # the first key is in the database
            process.terminate()
            assert process.wait(PATIENCE) == 0
    finally:
        os.umask(before)
    made = [
        path for path in tmp_path.rglob("*") if path.relative_to(tmp_path).parts[0] not in given
    ]
    assert tmp_path / "quire.sqlite3" in made
    readable = [path for path in made if path.stat().st_mode & 0o077]
    private = [path for path in made if path.is_dir() and not path.stat().st_mode & 0o077]
    assert [path for path in readable if not set(private) & set(path.parents)] == []


@pytest.mark.wide
def test_without_web_and_cpu_worker_no_database_is_touched(environment, tmp_path):
    with running(environment, "--only", "valkey") as process:
        pid_of_valkey(tmp_path)
        process.terminate()
        assert process.wait(PATIENCE) == 0
    assert not (tmp_path / "quire.sqlite3").exists()


@pytest.mark.wide
def test_with_redis_given_no_valkey_is_started(environment, tmp_path):
    other = {**environment, "REDIS_URL": f"unix://{tmp_path}/absent.sock?db=0"}
    with running(other, "--only", "valkey") as process:
        read_until(process, "state and logs")
        process.terminate()
        assert process.wait(PATIENCE) == 0
    assert not (tmp_path / "log" / "valkey.log").exists()
