"""The recorder of the files that run, in a process of its own."""

import os
import subprocess
import sys

from benchmarks.service.installation import ROOT
from benchmarks.studies.files_for_a_stream.__main__ import RECORDER, read_recording

PROGRAM = """
from completions.contract import strict_json
input()
strict_json.encode_line({})
print("ran", flush=True)
input()
"""


def test_a_recording_names_the_files_that_ran_since_the_last_one(tmp_path):
    settings = {"RECORD_FILES": str(tmp_path), "PYTHONPATH": f"{RECORDER}:{ROOT}"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env=os.environ | settings,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        read_recording(tmp_path, "start", [process.pid])
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ran\n"
        ran = read_recording(tmp_path, "ran", [process.pid])
        assert ran == {"completions/contract/strict_json.py"}
        assert read_recording(tmp_path, "idle", [process.pid]) == set()
        process.stdin.write("\n")
