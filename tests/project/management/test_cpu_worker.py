"""`manage.py cpu_worker` as a process of its own."""

import os
import signal
import subprocess
import sys

import pytest

from tests.acceptance.service import ROOT

pytestmark = pytest.mark.integration


def test_it_ends_though_redis_never_came(tmp_path):
    absent = {"QUIRE_HOME": str(tmp_path), "REDIS_URL": f"unix://{tmp_path}/absent.sock"}
    environment = {k: v for k, v in os.environ.items() if k != "DJANGO_SETTINGS_MODULE"}
    worker = subprocess.Popen(
        [sys.executable, "manage.py", "cpu_worker"],
        cwd=ROOT,
        env={**environment, **absent},
        stderr=subprocess.PIPE,
        text=True,
    )
    with worker:
        try:
            assert any("beat: Connection error" in line for line in worker.stderr)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0
        finally:
            worker.kill()
