"""A client of a service in memory, with short pauses and parts."""

from pathlib import Path

import httpx
import pytest

import quire_client
from quire_client import Quire
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
    monkeypatch.setattr(quire_client, "LONGEST_PAUSE", 0.0)
    monkeypatch.setattr(quire_client, "PART_BYTES", 1000)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(LINE * 60)
    return path
