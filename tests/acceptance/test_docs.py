"""Blocks marked `sh run` in docs/ are run here against an installation; what is named exists."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.conftest import METRICS_TOKEN
from tests.acceptance.service import ROOT

DOCS = sorted((ROOT / "docs").glob("*.md"))


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```sh run\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.faults
@pytest.mark.parametrize("page", [page for page in DOCS if blocks(page)], ids=lambda p: p.name)
def test_the_examples_run(service, page):
    environment = {
        **service.environment,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "QUIRE_API_KEY": service.key,
        "QUIRE_HTTPS": "true",
    }
    for block in blocks(page):
        script = block.replace("http://localhost:8000", service.url)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=ROOT, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, (block, done.stdout, done.stderr)
    assert environment["QUIRE_METRICS_TOKEN"] == METRICS_TOKEN


def test_files_that_are_named_exist():
    for page in DOCS:
        for name in re.findall(
            r"`((?:tests|deploy|benchmarks|project)/[\w/.]+)`", page.read_text()
        ):
            assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_tests_that_are_named_exist():
    named = {
        (file, test)
        for page in DOCS
        for file, test in re.findall(r"`(tests/[\w/.]+)::(?:\w+::)?(\w+)`", page.read_text())
    }
    assert len(named) > 20
    for file, test in named:
        source = (ROOT / file).read_text()
        assert re.search(rf"^ *(async )?def {test}\(", source, re.MULTILINE), f"{file}::{test}"


def test_settings_that_are_named_exist():
    readme = (ROOT / "README.md").read_text()
    for page in DOCS:
        for name in re.findall(r"QUIRE_\w+[A-Z]", page.read_text()):
            if not name.startswith(("QUIRE_API_KEY", "QUIRE_FAULT_", "QUIRE_FUZZED_")):
                assert f"`{name}`" in readme, f"{page.name} names {name}"


def test_metrics_that_are_named_exist():
    source = "".join(path.read_text() for path in (ROOT / "workers").glob("metrics.py"))
    source += "".join(path.read_text() for path in (ROOT / "completions/api").glob("*metrics.py"))
    for page in DOCS:
        for name in re.findall(r"quire_(\w+)", page.read_text()):
            stem = re.sub(r"_total$", "", name)
            assert stem in source, f"{page.name} names {name}"
