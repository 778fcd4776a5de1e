"""Runs the blocks in docs/ marked `sh run`. Files, tests, settings and metrics in docs/ exist."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.acceptance.conftest import METRICS_TOKEN
from tests.acceptance.service import MODEL, ROOT, START_TIMEOUT

DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
DOCS = sorted((ROOT / "docs").glob("*.md")) + DECISIONS


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```sh run\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.faults
@pytest.mark.parametrize("page", [page for page in DOCS if blocks(page)], ids=lambda p: p.name)
def test_the_examples_run(service, page, tmp_path):
    environment = {
        **service.environment,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "QUIRE_API_KEY": service.key,
        "QUIRE_HTTPS": "true",
        "QUIRE_TRUSTED_PROXIES": "127.0.0.1",
        "TMPDIR": str(tmp_path),
    }
    for block in blocks(page):
        script = block.replace("http://localhost:8000", service.url)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=ROOT, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, (block, done.stdout, done.stderr)
    assert environment["QUIRE_METRICS_TOKEN"] == METRICS_TOKEN


def test_backups_are_for_their_own_user_alone():
    """Whatever umask the shell has."""
    page = (ROOT / "docs" / "backup.md").read_text()
    every = re.findall(r"^```sh.*?\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    writing = [block for block in every if re.search(r"pg_dump --|tar .*-c ", block)]
    assert len(writing) == 1
    assert all(block.startswith("umask 077") for block in writing)


@pytest.fixture
def both(service):
    """Ids of the worker that `up` runs and of a second one, which ends with the test."""
    command = [sys.executable, "manage.py", "engine_worker", "--model", MODEL]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    second = subprocess.Popen(command, cwd=ROOT, env=service.environment, **quiet)
    try:
        deadline = time.monotonic() + START_TIMEOUT
        row = re.compile(rf"^serving .* (\S+)  {MODEL}$", re.MULTILINE)
        while len(serving := row.findall(service.manage("workers"))) < 2:
            assert time.monotonic() < deadline, serving
            time.sleep(0.5)
        yield serving
    finally:
        second.terminate()
        second.wait(120)


@pytest.mark.faults
async def test_a_worker_is_replaced_without_a_lost_token(service, both):
    """As docs/scale.md says: the new one runs, the old one is drained and gets SIGTERM."""
    old_pid = service.pid("worker")
    (old,) = [name for name in both if f"-{old_pid}-" in name]
    begun = asyncio.Semaphore(0)
    async with service.async_client(timeout=600) as client:

        async def stream(seed):
            numbers, ids = [], []
            async for chunk in await client.completions.create(
                model=MODEL, prompt=[9703], max_tokens=150, seed=seed, stream=True,
                extra_body={"return_token_ids": True, "ignore_eos": True},
            ):  # fmt: skip
                if not numbers:
                    begun.release()
                numbers.append(chunk.sequence_number)
                ids += chunk.choices[0].token_ids
            return numbers, ids

        streams = [asyncio.create_task(stream(seed)) for seed in range(8)]
        for _ in streams:
            await begun.acquire()
        drain = ("workers", "--drain", old, "--wait")
        assert "has no jobs any more" in await asyncio.to_thread(service.manage, *drain)
        os.kill(old_pid, signal.SIGTERM)
        for numbers, ids in await asyncio.gather(*streams):
            assert numbers == list(range(1, len(numbers) + 1))
            assert len(ids) == 150
    await asyncio.to_thread(service.pid, "worker", old_pid)


def test_files_that_are_named_exist():
    for page in DOCS:
        for name in re.findall(
            r"`((?:tests|deploy|benchmarks|project)/[\w/.]+)`", page.read_text()
        ):
            assert (ROOT / name).exists(), f"{page.name} names {name}"


@pytest.mark.parametrize("page", [ROOT / "ARCHITECTURE.md", *DECISIONS], ids=lambda p: p.stem)
def test_files_that_the_architecture_names_exist(page):
    folders = (
        "",
        "completions",
        "completions/jobs/lua",
        "project",
        "workers",
        "workers/engine",
        "workers/engine/backends",
        "clients/quire_client",
    )
    for name in re.findall(r"`((?:[\w.]+/)*\w+(?:\.py|\.lua|\.c|/))`", page.read_text()):
        assert any((ROOT / folder / name).exists() for folder in folders), name


def test_the_architecture_lists_every_decision_with_its_status():
    listed = re.findall(
        r"^\| (\d+) \| \[(.*)\]\((docs/decisions/.*)\) \| (.*) \|$",
        (ROOT / "ARCHITECTURE.md").read_text(),
        re.MULTILINE,
    )
    assert [file for *_, file, _ in listed] == [str(path.relative_to(ROOT)) for path in DECISIONS]
    for number, title, file, status in listed:
        start = f"# {number}. {title}\n\nStatus: {status}\n\n"
        assert (ROOT / file).read_text().startswith(start), file


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


OF_OTHERS = ("QUIRE_API_KEY", "QUIRE_BASE_URL", "QUIRE_FAULT_", "QUIRE_FUZZED_", "QUIRE_TEST_")
"""Variables of clients and of tests."""


def test_settings_that_are_named_exist():
    settings = (ROOT / "docs" / "operate.md").read_text()
    for page in DOCS:
        for name in re.findall(r"QUIRE_\w+[A-Z]", page.read_text()):
            if not name.startswith(OF_OTHERS):
                assert f"`{name}`" in settings, f"{page.name} names {name}"


def test_metrics_that_are_named_exist():
    source = "".join(path.read_text() for path in (ROOT / "workers").glob("metrics.py"))
    source += "".join(path.read_text() for path in (ROOT / "completions").glob("*/*metrics.py"))
    for page in DOCS:
        for name in re.findall(r"quire_(\w+)", page.read_text()):
            stem = re.sub(r"_total$", "", name)
            assert stem in source, f"{page.name} names {name}"
