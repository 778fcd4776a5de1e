"""The blocks of docs/tour.md run one after another, without a service."""

import os
import re
import subprocess
import sys

import pytest

from tests import compiled
from tests.acceptance.service import MODEL_FOLDER, ROOT

PAGE = ROOT / "docs" / "tour.md"


@pytest.mark.long
@pytest.mark.acceptance
def test_the_tour_runs(tmp_path):
    (tmp_path / "models").symlink_to(MODEL_FOLDER.parent)
    script = "\n".join(
        re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    )
    compiled.share(tmp_path)
    settings = {"QUIRE_HOME": str(tmp_path), "DJANGO_SETTINGS_MODULE": "project.settings"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=os.environ | settings,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert printed[0] == "((9703, 28, 357, 5348),) 8"
    assert printed[1].startswith("cmpl-")
    assert "temperature" in printed[2]
    assert printed[-1] == "data: [DONE]"
    text = "".join(re.findall(r'"text":"(.*?)"', done.stdout))
    assert re.fullmatch("(red|green) [0-9]", text)


def test_the_tour_is_short():
    assert len(PAGE.read_text().splitlines()) <= 200
