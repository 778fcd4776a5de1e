"""A client of a service in memory, with short pauses and parts."""

from pathlib import Path

import httpx
import pytest

from quire_client import Quire, exchange, submission
from tests.clients.memory_service import LINE, Service


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def quire(service):
    with Quire("http://quire/v1", "sk-a", httpx.MockTransport(service)) as quire:
        yield quire


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    monkeypatch.setattr(exchange, "LONGEST_PAUSE", 0.0)
    monkeypatch.setattr(submission, "PART_BYTES", 1000)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(LINE * 60)
    return path
