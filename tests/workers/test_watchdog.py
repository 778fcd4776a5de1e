"""The watchdog ends a process whose Python does not get to run any more."""

import faulthandler
import subprocess
import sys

import pytest

from tests.acceptance.service import ROOT
from workers.watchdog import Watchdog

SCRIPT = """
import ctypes
from workers.watchdog import Watchdog
Watchdog(patience=2.0).feed()
ctypes.PyDLL(None).pause()  # PyDLL keeps the interpreter's lock, and a pause has no end
"""


@pytest.mark.integration
def test_a_step_that_never_releases_the_gil_is_ended():
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr
    assert '<string>", line 5' in ended.stderr  # where it hung


def test_a_stopped_one_ends_nothing(monkeypatch):
    cancelled = []
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: cancelled.append(1))
    Watchdog(30.0).stop()
    assert cancelled


def test_feeding_it_postpones_the_end(monkeypatch):
    armed = []
    monkeypatch.setattr(
        faulthandler, "dump_traceback_later", lambda patience, **_options: armed.append(patience)
    )
    now = [100.0]
    watchdog = Watchdog(30.0, clock=lambda: now[0])
    for now[0] in (100.0, 100.5, 101.9, 102.0, 103.0, 104.5):  # each arrangement starts a thread
        watchdog.feed()
    assert armed == [30.0] * 3
