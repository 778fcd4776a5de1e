"""A worker whose settings ask for what this machine or model does not have."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parent.parent.parent
LAUNCH = """
import os, sys
if os.environ["GPUS"] != "0":
    import torch
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: int(os.environ["GPUS"])
    torch.cuda.current_device = lambda: 0
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", "engine_worker"])
"""


def launch(folder, url, settings, **environment):
    """Exit code, and the lines that it has written."""
    (folder / "config.json").write_text(environment.get("CONFIG", "{}"))
    document = f'[models.m]\npath = "{folder}"\n{settings}'
    (folder / "models.toml").write_text(document)
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH],
        cwd=ROOT, check=False, capture_output=True, text=True, timeout=240,
        env={
            **os.environ, "QUIRE_HOME": str(folder), "QUIRE_MODELS": f"{folder}/models.toml",
            "REDIS_URL": url, "DJANGO_SETTINGS_MODULE": "project.settings", **environment,
        },
    )  # fmt: skip
    return done.returncode, (done.stdout + done.stderr).splitlines()


@pytest.mark.parametrize(
    ("settings", "environment", "complaint"),
    [
        ('dtype = "int8"', {"GPUS": "1"}, "dtype int8 is for CPUs, not for cuda:0"),
        ("", {"GPUS": "1", "QUIRE_DTYPE": "int8"}, "dtype int8 is for CPUs, not for cuda:0"),
        ("", {"GPUS": "0", "QUIRE_DTYPE": "int4"}, "dtype must be one of"),
        ("", {"GPUS": "0", "CONFIG": '{"model_type": "llama"}'}, "no file named model.safetensors"),
    ],
)
def test_what_cannot_be_served_is_told_in_one_line(
    tmp_path, valkey, settings, environment, complaint
):
    code, lines = launch(tmp_path, valkey.url, settings, **environment)
    assert code == 1
    assert "Traceback" not in "\n".join(lines)
    (told,) = [json.loads(line) for line in lines if complaint in line]
    assert told["level"] == "critical"
    assert "exception" not in told
    assert told["message"].startswith("m cannot be served: ")
