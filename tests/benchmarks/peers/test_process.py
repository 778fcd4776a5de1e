import sys
from pathlib import Path

import pytest

from benchmarks.peers.process import Contender, ContenderError, running
from benchmarks.peers.protocol import Job

ECHO = """
from benchmarks.peers.protocol import serve

def load(path, dtype):
    print("chatter of a library")
    return (lambda job: [(prompt * 2, path + dtype) for prompt in job.prompts]), {"version": 3}

serve(load)
"""


def contender(folder: Path, source: str) -> Contender:
    (folder / "contender.py").write_text(source)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {folder}/contender.py "$3" "$4"\n')
    python.chmod(0o700)
    return Contender("echo", "contender", str(python), Path("model"), ("int8",))


def test_a_contender_answers_jobs_in_a_process_of_its_own(tmp_path: Path) -> None:
    with running(contender(tmp_path, ECHO)) as process:
        assert process.about == {"version": 3}
        free = process.run(Job([[1, 2], [3]], max_tokens=2))
        assert (free.tokens, free.texts) == (6, [])
        assert process.run(Job([[1]], max_tokens=2, schema="{}")).texts == ["modelint8"]


def test_the_reason_why_a_contender_ended_is_reported(tmp_path: Path) -> None:
    with (
        pytest.raises(ContenderError, match="no such backend"),
        running(contender(tmp_path, "raise SystemExit('no such backend')")),
    ):
        pass
