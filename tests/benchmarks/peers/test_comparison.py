import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import comparison
from benchmarks.peers.comparison import Comparison, Row, Table
from benchmarks.peers.protocol import Answer, Job
from benchmarks.peers.workloads import REGEX, Shape, Workload

ONE, TWO = Shape(1, 6, 4), Shape(2, 6, 4)


class FakeProcess:
    """Takes as many seconds for its jobs as a list says, and twice the processor time."""

    def __init__(self, name: str, log: list[tuple[str, Job]], seconds: list[float]) -> None:
        self.name = name
        self._log = log
        self._seconds = iter(seconds)
        self.texts: list[str] = []

    def run(self, job: Job) -> Answer:
        self._log.append((self.name, job))
        seconds = next(self._seconds)
        tokens = len(job.prompts) * job.max_tokens
        return Answer(seconds, 2 * seconds, tokens, self.texts)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 99}))
    return tmp_path


def compare(model: Path, processes: list[Any], able: set[str], **options: Any) -> Comparison:
    return Comparison(processes, able, model, **{"turns": 3, **options})


def test_contenders_take_turns_with_the_same_new_prompts(model: Path) -> None:
    log: list[tuple[str, Job]] = []
    processes = [FakeProcess(name, log, [1.0] * 9) for name in ("quire", "peer")]
    compare(model, processes, set()).measure(Workload("w", "W", "new tokens/s", (ONE, TWO)))
    assert [name for name, _ in log] == ["quire", "peer"] * 7
    jobs = [job for _, job in log]
    assert jobs[::2] == jobs[1::2]
    prompts = [tuple(prompt) for job in jobs[::2] for prompt in job.prompts]
    assert len(set(prompts)) == len(prompts) == 4 * 1 + 3 * 2
    assert {job.max_tokens for job in jobs} == {4}


def test_rates_are_medians_of_the_turns_after_the_first(model: Path) -> None:
    process = FakeProcess("quire", [], [9.0, 1.0, 4.0, 2.0])
    table = compare(model, [process], set()).measure(Workload("w", "W", "new tokens/s", (ONE,)))
    assert table.rows[0].rates == {"quire": [4.0, 1.0, 2.0]}
    assert table.rows[0].median("quire") == 2.0


def test_prompts_alone_count_their_own_tokens_and_processor_time_can_count(model: Path) -> None:
    process = FakeProcess("quire", [], [1.0, 0.5])
    table = compare(model, [process], set(), turns=1, clock="processor").measure(
        Workload("w", "W", "prompt tokens/s", (TWO,))
    )
    assert table.rows[0].rates == {"quire": [12.0]}


def test_only_some_batch_sizes(model: Path) -> None:
    process = FakeProcess("quire", [], [1.0] * 9)
    table = compare(model, [process], set()).measure(
        Workload("w", "W", "new tokens/s", (ONE, TWO)), batches=[2]
    )
    assert [row.shape for row in table.rows] == [TWO]


def test_who_cannot_constrain_gets_no_constrained_job(model: Path) -> None:
    log: list[tuple[str, Job]] = []
    processes = [FakeProcess(name, log, [1.0] * 9) for name in ("quire", "peer")]
    table = compare(model, processes, {"quire"}).measure(
        Workload("w", "W", "new tokens/s", (ONE,), "regex")
    )
    assert {(name, job.regex) for name, job in log} == {("quire", REGEX)}
    assert table.rows[0].median("peer") is None


def test_only_documents_that_match_the_schema_count(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Prompts:
        def __init__(self, folder: Path) -> None:
            assert folder == model

        def take(self, batch: int) -> list[list[int]]:
            return [[1]] * batch

    monkeypatch.setattr(comparison, "RecordPrompts", Prompts)
    monkeypatch.setattr(comparison, "SCHEMA", '{"type": "array"}')
    process = FakeProcess("quire", [], [1.0] * 9)
    process.texts = ["[1]", "{}", "[1", "[]"]
    table = compare(model, [process], {"quire"}).measure(
        Workload("w", "W", "documents/s", (Shape(4, 0, 9),), "schema")
    )
    assert table.rows[0].median("quire") == 2.0


def test_ratios_are_ours_to_theirs(capsys: pytest.CaptureFixture[str]) -> None:
    workload = Workload("w", "Title", "new tokens/s", (TWO,))
    rates = {"quire": [30.0, 40.0, 20.0], "peer": [12.0], "unable": []}
    table = Table(workload, [Row(TWO, rates)])
    table.print()
    assert "| 2 x 6 + 4 | 30 | 12 (2.50x) | - |" in capsys.readouterr().out
    (row,) = table.to_json()["rows"]
    assert row["turns"] == rates
    assert row["median"] == {"quire": 30.0, "peer": 12.0, "unable": None}
