"""What the command does for each verb, with a service in memory."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import quire_client
from quire_client import batches, command
from quire_client.clients import Quire
from tests.clients.memory_service import LINE, Service

FORECAST = {"object": "batch.forecast", "invalid_lines": 1}


@pytest.fixture
def main(service: Service, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.setattr(batches, "LOOK_EVERY", 0)
    transport = httpx.MockTransport(service)
    monkeypatch.setattr(command, "Quire", lambda: Quire("http://quire/v1", "sk-a", transport))
    return lambda *words: quire_client.main(list(map(str, words)))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(LINE)
    return path


def test_list(main: Callable[..., int], service: Service, capsys: Any) -> None:
    assert main("list", "--limit", "3") == 0
    assert capsys.readouterr().out == "batch_1  completed    2/2  night\n"
    assert service.queries == ["limit=3"]


def test_start(main: Callable[..., int], service: Service, capsys: Any) -> None:
    assert main("start", "batch_1") == 0
    assert service.asked == ["POST /batches/batch_1/start"]
    assert capsys.readouterr().out == "completed\n"


@pytest.mark.parametrize("name", ["jsonl", "csv", "parquet"])
def test_export(main: Callable[..., int], service: Service, tmp_path: Path, name: str) -> None:
    service.cut_at = 100
    target = tmp_path / f"rows.{name}"
    assert main("export", "batch_1", "--to", target) == 0
    assert target.read_bytes() == service.content
    assert service.queries == [f"format={name}"] * 2  # the whole file again
    assert list(tmp_path.iterdir()) == [target]


def test_an_export_to_another_format_is_refused(
    main: Callable[..., int], service: Service, capsys: Any
) -> None:
    assert main("export", "batch_1", "--to", "rows.xlsx") == 1
    assert "rows.xlsx is none of FILE.jsonl, FILE.csv, FILE.parquet" in capsys.readouterr().err
    assert service.asked == []


def test_a_pilot_ends_before_its_forecast_is_printed(
    main: Callable[..., int], service: Service, file: Path, capsys: Any
) -> None:
    """While the file is validated there is none, and then it changes until the pilot has run."""
    told = [
        {"status": "validating", "pilot": 1},
        {"status": "in_progress", "pilot": 1, "forecast": {**FORECAST, "invalid_lines": 2}},
        {"status": "in_progress", "pilot": 1, "forecast": FORECAST},
    ]

    original = service.answer

    def answer(path: str, request: httpx.Request) -> httpx.Response:
        if request.method == "GET" and path == "/batches/batch_1":
            service.fields = told.pop(0) if len(told) > 1 else told[0]
        return original(path, request)

    service.answer = answer  # type: ignore[method-assign]
    assert main("dry-run", file, "--pilot", "1", "--name", "night", "--on-late", "refuse") == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == FORECAST
    assert "quire start batch_1 runs the rest" in said.err
    assert service.bodies[0] == {
        "input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h",
        "dry_run": True, "on_invalid": "skip", "on_late": "refuse", "pilot": 1,
        "metadata": {"name": "night"},
    }  # fmt: skip


def test_a_pilot_of_a_bad_file_fails(
    main: Callable[..., int], service: Service, file: Path, capsys: Any
) -> None:
    service.status = "failed"
    service.fields = {"errors": {"data": [{"line": 1, "message": "no JSON"}]}, "pilot": 1}
    assert main("dry-run", file, "--pilot", "1") == 1
    assert "line 1: no JSON" in capsys.readouterr().err
