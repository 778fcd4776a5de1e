"""`manage.py demo` as a newcomer meets it: everything shown and stopped, or a clear reason."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import compiled

ROOT = Path(__file__).resolve().parents[3]
MODEL = "smollm2-135m-instruct"
MODEL_FOLDER = ROOT / "var" / "models" / MODEL


def started_demo(home: Path, model_folder: Path) -> subprocess.Popen[str]:
    """The command in a home of its own."""
    compiled.share(home)
    (home / "models.toml").write_text(f'[models.{MODEL}]\npath = "{model_folder}"\n')
    ours = ("DATABASE_URL", "REDIS_URL", "PORT", "DJANGO_SETTINGS_MODULE")
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    own = {"QUIRE_HOME": str(home), "QUIRE_MODELS": str(home / "models.toml")}
    return subprocess.Popen(
        [sys.executable, "manage.py", "demo"],
        cwd=ROOT,
        env={**inherited, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_demo(home: Path, model_folder: Path) -> subprocess.CompletedProcess[str]:
    """The command from its start to its end."""
    with started_demo(home, model_folder) as demo:
        try:
            output, error = demo.communicate(timeout=500)
        finally:
            demo.kill()
    return subprocess.CompletedProcess(demo.args, demo.returncode, output, error)


def processes_of(home: Path) -> list[str]:
    """Command lines of processes whose environment names this home."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"QUIRE_HOME={home}".encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text())
        except OSError:  # ended meanwhile, or not ours to read
            continue
    return found


@pytest.mark.acceptance
@pytest.mark.long
def test_it_shows_every_kind_of_request_and_leaves_nothing(tmp_path):
    done = run_demo(tmp_path, MODEL_FOLDER)
    assert done.returncode == 0, done.stdout + done.stderr
    for scene in ("1. Const", "2. Const", "3. Stream", "4. In the back", "5. 20 req", "6. A file"):
        assert f"\n{scene}" in done.stdout
    assert "tokens/s" in done.stdout
    assert done.stderr == ""
    assert processes_of(tmp_path) == []
    assert os.listdir(tmp_path / "run") == ["up.lock"]


@pytest.mark.wide
@pytest.mark.integration
def test_a_model_that_is_not_there_is_a_reason(tmp_path):
    done = run_demo(tmp_path, tmp_path / "nothing")
    assert done.returncode == 1
    assert f"finding {MODEL} failed" in done.stderr
    assert "Traceback" not in done.stderr
    assert processes_of(tmp_path) == []


@pytest.mark.integration
@pytest.mark.long
def test_a_service_that_does_not_start_is_a_reason_with_the_log(tmp_path, monkeypatch):
    monkeypatch.setenv("QUIRE_DEVICE", "cuda:99")
    done = run_demo(tmp_path, MODEL_FOLDER)
    assert done.returncode == 1
    assert "the service did not start" in done.stderr
    assert f"the end of {tmp_path}/log/worker.log" in done.stderr
    assert "device 'cuda:99'" in done.stderr
    assert "Traceback" not in done.stderr
    assert processes_of(tmp_path) == []


@pytest.mark.integration
@pytest.mark.long
def test_an_interrupted_demo_stops_what_it_started(tmp_path):
    with started_demo(tmp_path, MODEL_FOLDER) as demo:
        assert demo.stdout.readline().startswith("Starting")
        while len(processes_of(tmp_path)) < 3:
            assert demo.poll() is None
            time.sleep(0.05)
        demo.send_signal(signal.SIGINT)
        _, error = demo.communicate(timeout=240)
    assert demo.returncode == 130
    assert "interrupted; everything was stopped" in error
    assert processes_of(tmp_path) == []
