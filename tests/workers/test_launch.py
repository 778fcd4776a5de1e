"""A worker whose settings ask for what this machine or model does not have."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from completions.catalog.entries import ModelEntry
from completions.jobs.sharding.shards import Address, Layout
from project.processes.supervisor import REFUSED
from workers import launch as launching
from workers.engine import build
from workers.engine.exceptions import RankLost, TooLarge, UnsupportedModel

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parent.parent.parent
NOWHERE = Layout(Address("", ""), [])


def launch(folder, url, **environment):
    """Exit code, and the lines that it has written."""
    (folder / "config.json").write_text("{}")
    (folder / "models.toml").write_text(f'[models.m]\npath = "{folder}"\n')
    done = subprocess.run(
        [sys.executable, "manage.py", "engine_worker"],
        cwd=ROOT, check=False, capture_output=True, text=True, timeout=240,
        env={
            **os.environ, "QUIRE_HOME": str(folder), "QUIRE_MODELS": f"{folder}/models.toml",
            "REDIS_URL": url, "DJANGO_SETTINGS_MODULE": "project.settings", **environment,
        },
    )  # fmt: skip
    return done.returncode, (done.stdout + done.stderr).splitlines()


@pytest.mark.parametrize(
    ("device", "given", "slots", "tokens"),
    [
        ("cpu", {}, 64, 512),
        ("cuda", {}, 256, 4096),
        ("cuda", {"max_num_seqs": 8, "max_num_batched_tokens": 100}, 8, 100),
        ("cpu", {"max_num_seqs": 600}, 600, 1200),
    ],
)
def test_a_step_is_larger_on_a_gpu(device, given, slots, tokens):
    assert launching.sizes(ModelEntry("m", Path("m"), **given), device) == (slots, tokens)


def test_the_settings_of_an_entry_reach_the_engine():
    entry = ModelEntry(
        "m", Path("m"), gpu_memory_utilization=0.4, enforce_eager=True, async_scheduling=False,
        grammar_threads=3, max_num_seqs=5, speculation=False, tensor_parallel_size=2,
    )  # fmt: skip
    options = launching.WorkerOptions(NOWHERE, "cpu", None, 1.0)
    config = launching._config(entry, options)
    for name in ("gpu_memory_utilization", "enforce_eager", "async_scheduling", "grammar_threads",
                 "max_num_seqs", "speculation", "tensor_parallel_size"):  # fmt: skip
        assert getattr(config, name) == getattr(entry, name), name


@pytest.mark.long
def test_a_model_that_cannot_be_served_is_reported_in_one_line(tmp_path, valkey):
    code, lines = launch(tmp_path, valkey.url)
    assert code == launching.REFUSED == REFUSED
    assert "Traceback" not in "\n".join(lines)
    (logged,) = [json.loads(line) for line in lines if "cannot be served" in line]
    assert logged["level"] == "critical"
    assert "exception" not in logged
    assert logged["message"].startswith(
        f"m cannot be served: {tmp_path}/config.json has no model_type"
    )


@pytest.mark.parametrize(
    ("given", "wanted", "complaint"),
    [
        ({"dtype": "int8"}, {"device": "cuda"}, "dtype int8 is for CPUs, not for cuda:0"),
        ({}, {"device": "cuda", "dtype": "int8"}, "dtype int8 is for CPUs, not for cuda:0"),
        (
            {"tensor_parallel_size": 2},
            {"device": "cuda"},
            "tensor_parallel_size = 2 needs as many GPUs from cuda:0 on, and there are 1: set it "
            "to 1 at most",
        ),
        (
            {"tensor_parallel_size": 2, "dtype": "int8"},
            {"device": "cpu"},
            'with tensor_parallel_size = 2, set dtype = "bfloat16"',
        ),
        (
            {"tensor_parallel_size": 2, "adapters": {"polite": Path("polite")}},
            {"device": "cpu"},
            "adapters (polite) need the whole model in one process",
        ),
        ({}, {"device": "cpu"}, "no file named model.safetensors"),
    ],
)
def test_what_this_machine_or_model_cannot_do_ends_the_worker(
    tmp_path, monkeypatch, caplog, given, wanted, complaint
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    options = launching.WorkerOptions(
        **{"redis": NOWHERE, "dtype": None, "shutdown_grace": 1.0, **wanted}
    )
    with pytest.raises(SystemExit, match=str(launching.REFUSED)):
        launching.load_engine(ModelEntry("m", tmp_path, **given), options)
    (logged,) = [record.message for record in caplog.records if record.levelname == "CRITICAL"]
    assert logged.startswith("m cannot be served: ")
    assert complaint in logged


def start_with(monkeypatch, folder, error):
    def refuse(*_):
        raise error

    monkeypatch.setattr(build, "build_engine", refuse)
    options = launching.WorkerOptions(NOWHERE, "cpu", None, 1.0)
    with pytest.raises(SystemExit) as ended:
        launching.load_engine(ModelEntry("m", folder), options)
    return ended.value.code


def caused_by(cause, error=None):
    error = error or UnsupportedModel("llama cannot be tried")
    error.__cause__ = cause
    return error


PASSING = {
    "weights that do not fit now": TooLarge("its weights take 9 GiB, and 3 GiB are free"),
    "a GPU that others fill": caused_by(torch.OutOfMemoryError("CUDA out of memory")),
    "a GPU that is lost": caused_by(torch.AcceleratorError("CUDA error: device is busy")),
    "a full main memory": caused_by(RuntimeError("DefaultCPUAllocator: can't allocate memory")),
    "a file that cannot be read now": caused_by(OSError(errno.ESTALE, "Stale file handle")),
    "too many open files": caused_by(
        caused_by(OSError(errno.EMFILE, "Too many open files")), ValueError("adapter")
    ),
    "a lost rank": RankLost(),
}
LASTING = {
    "an unknown layer": caused_by(KeyError("su")),
    "a file that transformers does not find": caused_by(OSError("no file named x")),
    "an adapter that is not there": caused_by(FileNotFoundError(errno.ENOENT, "polite")),
}


@pytest.mark.parametrize("name", PASSING)
def test_a_worker_with_a_reason_that_may_pass_is_started_again(tmp_path, monkeypatch, name):
    (tmp_path / "config.json").write_text("{}")
    assert start_with(monkeypatch, tmp_path, PASSING[name]) == 1


@pytest.mark.parametrize("name", LASTING)
def test_a_worker_with_a_reason_that_lasts_is_not_started_again(tmp_path, monkeypatch, name):
    (tmp_path / "config.json").write_text("{}")
    assert start_with(monkeypatch, tmp_path, LASTING[name]) == launching.REFUSED


def test_a_worker_whose_folder_is_not_mounted_is_started_again(tmp_path, monkeypatch):
    error = UnsupportedModel("config.json is missing")
    assert start_with(monkeypatch, tmp_path / "mount", error) == 1
