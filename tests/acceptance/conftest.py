"""One installation on the embedded servers for all tests of the whole path."""

from collections.abc import Callable, Iterator

import httpx
import openai
import pytest

from tests.acceptance.service import MODEL, Installation
from tests.acceptance.small_model import SMALL, save_small_model


class TwoModels(Installation):
    """The demo model, and a small one that can do what it cannot."""

    def more_models(self) -> str:
        return save_small_model(self.home / SMALL)


METRICS_TOKEN = "for-prometheus-alone"


@pytest.fixture(scope="session")
def service(tmp_path_factory) -> Iterator[Installation]:
    home = tmp_path_factory.mktemp("home")
    with TwoModels(
        home, QUIRE_SHUTDOWN_GRACE="1", QUIRE_METRICS_TOKEN=METRICS_TOKEN
    ) as installation:
        installation.wait_served(MODEL)
        yield installation


@pytest.fixture
def client(service: Installation) -> Iterator[openai.OpenAI]:
    with service.client() as client:
        yield client


@pytest.fixture
def http(service: Installation) -> Iterator[httpx.Client]:
    with service.http() as client:
        yield client


@pytest.fixture(scope="session")
def tokenize(service: Installation) -> Callable[[str], list[int]]:
    """Text to token ids, through the API."""
    with service.http() as client:

        def ids(text: str) -> list[int]:
            answer = client.post("/v1/tokenize", json={"model": MODEL, "prompt": text})
            tokens: list[int] = answer.raise_for_status().json()["tokens"]
            return tokens

        yield ids
