"""clients/quire_client against a real service: its command, its classes, and `map`."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from quire_client import AsyncQuire, Quire, QuireError
from tests.acceptance.service import MODEL, ROOT
from tests.acceptance.test_batches import jsonl, request

pytestmark = pytest.mark.acceptance

SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}


@pytest.fixture
def run(service, tmp_path):
    """The command, with the service's address and key."""
    environment = {
        "PYTHONPATH": str(ROOT / "clients"),
        "QUIRE_BASE_URL": f"{service.url}/v1",
        "QUIRE_API_KEY": service.key,
    }

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "quire_client", *map(str, arguments)]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
        )

    return run


def test_a_file_is_submitted_awaited_and_written(run, tmp_path: Path, tokenize) -> None:
    prompt = tokenize("The capital of France is")
    file = tmp_path / "lines.jsonl"
    lines = [request(f"r{n}", prompt, seed=n) for n in range(20)]
    lines[3]["body"]["max_tokens"] = -1
    file.write_bytes(jsonl(lines))
    done = run("submit", file, "--wait")
    assert done.returncode == 0, done.stderr
    assert "20/20 lines, 1 failed" in done.stderr
    output, errors = map(Path, done.stdout.split())
    assert {json.loads(line)["custom_id"] for line in output.read_text().splitlines()} == {
        f"r{n}" for n in range(20) if n != 3
    }
    (error,) = errors.read_text().splitlines()
    assert json.loads(error)["response"]["status_code"] == 400
    assert {path.name for path in tmp_path.iterdir()} == {file.name, output.name, errors.name}


@pytest.mark.wide
def test_the_other_verbs(run, service, tmp_path: Path, tokenize) -> None:
    file = tmp_path / "lines.jsonl"
    endless = {"max_tokens": 3000, "ignore_eos": True}
    file.write_bytes(jsonl(request(f"r{n}", tokenize("One"), **endless) for n in range(16)))
    batch = run("submit", file).stdout.strip()
    assert run("submit", file).stdout.strip() == batch  # the same again
    with Quire(f"{service.url}/v1", service.key) as quire:
        while quire.get(batch)["status"] == "validating":
            time.sleep(0.1)
    assert run("cancel", batch).stdout.strip() in ("cancelling", "cancelled")
    assert run("watch", batch).returncode == 1  # it did not complete
    again = run("resubmit", batch).stdout.strip()
    assert again.startswith("batch_")
    run("cancel", again)
    unknown = run("fetch", "batch_0")
    assert unknown.returncode == 1
    assert unknown.stderr == "quire: No such batch.\n"


@pytest.mark.wide
def test_a_dry_run_forecasts_and_runs_nothing(run, tmp_path: Path, tokenize) -> None:
    file = tmp_path / "lines.jsonl"
    prompt = tokenize("The capital of France is")
    file.write_bytes(jsonl([request(f"r{n}", prompt) for n in range(5)]))
    said = run("dry-run", file)
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["lines"] == 5
    batch = run("submit", file, "--receipts").stdout.strip()  # of the same upload
    assert run("watch", batch).returncode == 0


def test_rows_come_back_as_they_finish(service) -> None:
    colours = ["grass", "sky", "blood", "sea", "leaf"]
    with Quire(f"{service.url}/v1", service.key) as quire:
        found = dict(
            quire.map(colours, "The colour of {} is".format, SCHEMA, model=MODEL, max_tokens=20)
        )
    assert found.keys() == set(colours)
    assert all(answer["colour"] in ("red", "green", "blue") for answer in found.values())


async def test_rows_that_fail_are_distinguished(service) -> None:
    def prompt(row: int) -> object:
        return "Say a word" if row else [{"role": "nobody", "content": "x"}]

    async with AsyncQuire(f"{service.url}/v1", service.key) as quire:
        found = {
            row: answer async for row, answer in quire.map(range(3), prompt, model=MODEL,
                                                           max_tokens=3)
        }  # fmt: skip
    assert isinstance(found[0], QuireError)
    assert found[0].status == 400
    assert all(isinstance(found[row], str) for row in (1, 2))


def test_the_page_of_the_client_runs(service, monkeypatch) -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs/client.md").read_text(), re.MULTILINE | re.DOTALL
    )
    monkeypatch.setenv("QUIRE_BASE_URL", f"{service.url}/v1")
    monkeypatch.setenv("QUIRE_API_KEY", service.key)
    said: list[tuple[str, dict[str, str]]] = []
    reviews = ["It broke at once.", "I love it."]
    names: dict[str, Any] = {"reviews": reviews, "print": lambda *words: said.append(words)}
    for block in blocks:
        exec(block, names)  # noqa: S102 - the document's own code
    assert len(names["turns"]) == 2
    assert {review for review, _ in said} == set(reviews)
    assert [str(answer) for _, answer in said if not isinstance(answer, dict)] == []
    assert {answer["sentiment"] for _, answer in said} <= {"good", "bad", "neither"}
