"""`manage.py demo` as a newcomer meets it: everything shown and stopped, or a clear reason."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MODEL = "smollm2-135m-instruct"
MODEL_FOLDER = ROOT / "var" / "models" / MODEL


def run_demo(home: Path, model_folder: Path) -> subprocess.CompletedProcess[str]:
    """The command in a home of its own."""
    (home / "models.toml").write_text(f'[models.{MODEL}]\npath = "{model_folder}"\n')
    ours = ("DATABASE_URL", "REDIS_URL", "PORT", "DJANGO_SETTINGS_MODULE")
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    own = {"QUIRE_HOME": str(home), "QUIRE_MODELS": str(home / "models.toml")}
    return subprocess.run(
        [sys.executable, "manage.py", "demo"], cwd=ROOT, env={**inherited, **own},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


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
def test_it_shows_every_kind_of_request_and_leaves_nothing(tmp_path):
    done = run_demo(tmp_path, MODEL_FOLDER)
    assert done.returncode == 0, done.stdout + done.stderr
    for scene in ("1. Const", "2. Const", "3. Stream", "4. In the back", "5. 20 req", "6. A file"):
        assert f"\n{scene}" in done.stdout
    assert "tokens/s" in done.stdout
    assert done.stderr == ""
    assert processes_of(tmp_path) == []
    assert os.listdir(tmp_path / "run") == ["up.lock"]


@pytest.mark.integration
def test_a_service_that_does_not_start_is_a_reason_with_the_log(tmp_path):
    done = run_demo(tmp_path, tmp_path / "nothing")
    assert done.returncode == 1
    assert "the service did not start" in done.stderr
    assert "prepare_model" in done.stderr
    assert "Traceback" not in done.stderr
    assert processes_of(tmp_path) == []
