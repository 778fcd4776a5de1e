"""project.processes.supervisor with small shell children: order, restarts, nothing left over."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from project.processes.supervisor import (
    REFUSED,
    AlreadyRunningError,
    Backoff,
    Service,
    StopRequested,
    Supervisor,
)

FOREVER = ("sleep", "1000")
PATIENCE = 120.0

pytestmark = pytest.mark.integration


def shell(name: str, script: str, grace: float = 5.0, stage: int = 0) -> Service:
    return Service(name, ("sh", "-c", script), grace=grace, stage=stage)


def noting_its_end(name: str, order: Path, stage: int) -> Service:
    """A child that says when it runs and writes its name to `order` when it is stopped."""
    script = (
        f'trap "echo {name} >> {order}; exit 0" TERM; echo running; while :; do sleep 0.02; done'
    )
    return shell(name, script, stage=stage)


def is_alive(pid: int) -> bool:
    """Running, and not merely a zombie that was not reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def supervisor(tmp_path, lines):
    with Supervisor(tmp_path, lines.append, Backoff(first=0.02, maximum=0.1)) as running:
        yield running


def test_backoff_doubles_and_is_bounded():
    backoff = Backoff(first=0.5, maximum=30.0)
    delays = [backoff.compute_delay(failures) for failures in range(1, 9)]
    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff.compute_delay(100_000) == 30


def test_pid_file_and_log(supervisor, tmp_path):
    supervisor.start(shell("one", "echo out; echo err >&2; exec sleep 1000"))
    assert int((tmp_path / "run/one.pid").read_text()) == supervisor.get_pid("one")
    log = tmp_path / "log/one.log"
    assert supervisor.wait_until(lambda: "err" in log.read_text(), PATIENCE)
    first, *rest = log.read_text().splitlines()
    assert first.startswith("--- ")
    assert first.endswith("starting one")
    assert rest == ["out", "err"]
    supervisor.stop()
    assert not (tmp_path / "run/one.pid").exists()


def test_environment_and_folder(supervisor, tmp_path):
    command = ("sh", "-c", "echo $WORD; pwd; exec sleep 1000")
    supervisor.start(Service("one", command, env={"WORD": "added"}, cwd=tmp_path))
    log = supervisor.get_log("one")
    expected = ["added", str(tmp_path)]
    assert supervisor.wait_until(lambda: log.read_text().splitlines()[1:] == expected, PATIENCE)


def test_a_child_that_cannot_run_as_configured_is_not_started_again(supervisor, tmp_path, lines):
    count = tmp_path / "count"
    supervisor.start(shell("refused", f"echo x >> {count}; exit {REFUSED}"))
    supervisor.start(shell("other", f"echo x >> {tmp_path}/other; exit 1"))
    other = tmp_path / "other"
    assert supervisor.wait_until(
        lambda: other.exists() and len(other.read_text().split()) > 4, PATIENCE
    )
    assert count.read_text().split() == ["x"]
    assert "refused" in supervisor.list_failing()
    (line,) = [line for line in lines if line.startswith("refused ")]
    assert "is not started again" in line
    assert str(supervisor.get_log("refused")) in line


def test_each_child_has_a_session_of_its_own(supervisor):
    supervisor.start(Service("one", FOREVER))
    pid = supervisor.get_pid("one")
    assert os.getsid(pid) == pid != os.getsid(0)


def test_stops_stage_by_stage(supervisor, tmp_path):
    order = tmp_path / "order"
    for stage, name in enumerate(("valkey", "worker", "web")):
        supervisor.start(noting_its_end(name, order, stage))
        log = supervisor.get_log(name)
        assert supervisor.wait_until(lambda log=log: "running" in log.read_text(), PATIENCE)
    supervisor.stop()
    assert order.read_text().split() == ["web", "worker", "valkey"]


def test_those_of_one_stage_stop_together(supervisor, tmp_path):
    """Each ends once all three have been asked to; one by one, they would wait for their grace."""
    asked = tmp_path / "asked"
    script = (
        f"trap 'echo asked >> {asked}' TERM; echo running; "
        f"until [ $(cat {asked} 2>/dev/null | wc -l) = 3 ]; do sleep 0.02; done; exit 0"
    )
    for name in ("one", "two", "three"):
        supervisor.start(shell(name, script, grace=PATIENCE))
        log = supervisor.get_log(name)
        assert supervisor.wait_until(lambda log=log: "running" in log.read_text(), PATIENCE)
    supervisor.stop()
    assert asked.read_text() == 3 * "asked\n"


def test_a_stubborn_child_is_killed_after_its_grace(supervisor, lines):
    service = shell("one", "trap '' TERM; echo running; while :; do sleep 0.02; done", grace=0.2)
    supervisor.start(service)
    log = supervisor.get_log("one")
    assert supervisor.wait_until(lambda: "running" in log.read_text(), PATIENCE)
    pid = supervisor.get_pid("one")
    supervisor.stop()
    assert not is_alive(pid)
    assert lines[-1] == "one has not stopped yet: killing it"


def test_what_a_child_leaves_in_its_session_ends_with_it(supervisor):
    supervisor.start(shell("one", "sleep 1000 & echo $!; exec sleep 1000"))
    log = supervisor.get_log("one")
    assert supervisor.wait_until(lambda: len(log.read_text().splitlines()) == 2, PATIENCE)
    grandchild = int(log.read_text().splitlines()[1])
    supervisor.stop()
    assert eventually(lambda: not is_alive(grandchild))


def test_a_killed_child_comes_back(supervisor, tmp_path, lines):
    supervisor.start(Service("one", FOREVER))
    first = supervisor.get_pid("one")
    os.kill(first, signal.SIGKILL)
    assert supervisor.wait_until(lambda: supervisor.get_pid("one") not in (None, first), PATIENCE)
    assert int((tmp_path / "run/one.pid").read_text()) == supervisor.get_pid("one")
    assert re.match(r"one was killed by SIGKILL after \d", lines[0])
    assert f"log: {tmp_path}/log/one.log" in lines[0]


def test_a_child_whose_pid_file_cannot_be_written_is_started_once(supervisor, tmp_path, lines):
    """As on a full disk. A second one would run beside the first, which nobody would stop."""
    draft = tmp_path / "run/one.draft"
    draft.mkdir()
    supervisor.start(Service("one", FOREVER))
    first = supervisor.get_pid("one")
    assert lines == [f"one runs as process {first}, but [Errno 21] Is a directory: '{draft}'"]
    os.kill(first, signal.SIGKILL)
    assert supervisor.wait_until(lambda: supervisor.get_pid("one") not in (None, first), PATIENCE)
    second = supervisor.get_pid("one")
    assert not supervisor.wait_until(lambda: supervisor.get_pid("one") != second, 0.3)
    draft.rmdir()
    assert supervisor.wait_until((tmp_path / "run/one.pid").exists, PATIENCE)
    assert int((tmp_path / "run/one.pid").read_text()) == second
    supervisor.stop()
    assert not is_alive(second)


def test_a_log_that_cannot_be_written_stops_no_child(supervisor, monkeypatch):
    monkeypatch.setattr(supervisor, "get_log", lambda name: Path("/dev/full"))
    supervisor.start(Service("one", FOREVER))
    assert is_alive(supervisor.get_pid("one"))


def test_a_failing_child_is_tried_ever_more_slowly(supervisor, lines):
    supervisor.start(shell("one", "exit 3"))
    assert supervisor.wait_until(lambda: len(lines) >= 5, PATIENCE)
    delays = [line.partition("again in ")[2].split(" s ")[0] for line in lines[:5]]
    assert delays == ["0.02", "0.04", "0.08", "0.1", "0.1"]
    assert lines[0].startswith("one exited with code 3")
    assert supervisor.list_failing() == ["one"]


def test_an_old_age_death_starts_the_count_anew(tmp_path, lines):
    backoff = Backoff(first=0.02, maximum=1.0, forgiven_after=0.0)
    with Supervisor(tmp_path, lines.append, backoff) as supervisor:
        supervisor.start(shell("one", "exit 3"))
        assert supervisor.wait_until(lambda: len(lines) >= 3, PATIENCE)
        assert supervisor.list_failing() == []
        assert all("again in 0.02 s" in line for line in lines[:3])


def test_the_others_are_left_alone(supervisor):
    supervisor.start(Service("one", FOREVER))
    supervisor.start(Service("two", FOREVER))
    one, two = supervisor.get_pid("one"), supervisor.get_pid("two")
    os.kill(two, signal.SIGKILL)
    assert supervisor.wait_until(lambda: supervisor.get_pid("two") not in (None, two), PATIENCE)
    assert supervisor.get_pid("one") == one


def test_a_child_that_waits_for_its_restart_is_not_started_by_stop(tmp_path, lines):
    with Supervisor(tmp_path, lines.append, Backoff(first=60.0)) as supervisor:
        supervisor.start(shell("one", "exit 3"))
        log = supervisor.get_log("one")
        assert supervisor.wait_until(lambda: bool(lines), PATIENCE)
        assert not (tmp_path / "run/one.pid").exists()
    assert log.read_text().count("starting one") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_stops_everything(tmp_path, lines, number):
    with contextlib.suppress(StopRequested), Supervisor(tmp_path, lines.append) as supervisor:
        supervisor.start(Service("one", FOREVER))
        pid = supervisor.get_pid("one")
        os.kill(os.getpid(), number)
        supervisor.run()
    assert not is_alive(pid)
    assert lines == ["stopping (a second signal kills)"]


def test_handlers_are_restored(tmp_path, lines):
    watched = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
    before = [signal.getsignal(number) for number in watched]
    with Supervisor(tmp_path, lines.append):
        assert [signal.getsignal(number) for number in watched] != before
    assert [signal.getsignal(number) for number in watched] == before


def test_waiting_gives_up_in_time(supervisor):
    assert not supervisor.wait_until(lambda: False, timeout=0.05)


def test_a_second_supervisor_of_a_home_is_refused(supervisor, tmp_path, lines):
    again = Supervisor(tmp_path, lines.append)
    with pytest.raises(AlreadyRunningError, match=f"process {os.getpid()} already"), again:
        pass


def test_the_lock_is_free_again_afterwards(tmp_path, lines):
    for _ in range(2):
        with Supervisor(tmp_path, lines.append):
            pass


def test_homes_do_not_disturb_each_other(supervisor, tmp_path, lines):
    with Supervisor(tmp_path / "other", lines.append):
        pass


@pytest.fixture
def stand_in(tmp_path):
    """A supervisor in a process of its own, with two children that have children."""
    script = textwrap.dedent("""
        import contextlib, sys
        from pathlib import Path
        from project.processes.supervisor import Service, StopRequested, Supervisor

        children = [Service(name, ["sleep", "1000"]) for name in ("one", "two")]
        with contextlib.suppress(StopRequested), Supervisor(Path(sys.argv[1]), print) as running:
            for child in children:
                running.start(child)
            print(*(running.get_pid(child.name) for child in children), flush=True)
            running.run()
        """)
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with process:
        yield process, [int(pid) for pid in process.stdout.readline().split()]
        process.kill()


def test_killing_the_parent_leaves_no_child(stand_in):
    process, pids = stand_in
    assert len(pids) == 2
    assert all(is_alive(pid) for pid in pids)
    process.kill()
    assert eventually(lambda: not any(is_alive(pid) for pid in pids))


def test_sigterm_ends_it_cleanly(stand_in, tmp_path):
    process, pids = stand_in
    process.terminate()
    assert process.wait(PATIENCE) == 0
    assert not any(is_alive(pid) for pid in pids)
    assert sorted(os.listdir(tmp_path / "run")) == ["up.lock"]


def test_it_sleeps_while_nothing_happens(stand_in):
    process, _ = stand_in
    before = _cpu_ticks(process.pid)
    time.sleep(0.5)
    assert _cpu_ticks(process.pid) - before <= 5  # of 50; a loop without sleep takes most of them


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
