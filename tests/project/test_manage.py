"""The command line as a process."""

import os
import subprocess
import sys

import pytest

from tests.acceptance.service import ROOT


@pytest.mark.integration
def test_a_reader_that_has_enough_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "manage.py", "help"],
            cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")
