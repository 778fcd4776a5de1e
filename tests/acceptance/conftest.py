"""Two installations on the embedded servers: one with real models, one whose engine is a script."""

import os
from collections.abc import Callable, Iterator

import httpx
import openai
import pytest

from tests.acceptance.service import MODEL, Installation, ScriptedInstallation
from tests.acceptance.small_model import SMALL, save_small_model

RANKS = os.environ.get("QUIRE_TEST_RANKS")
"""Processes that compute the demo model; one if it is not set."""


class TwoModels(Installation):
    """The demo model, and a small model with the features that it lacks."""

    def more_models(self) -> str:
        split = f"tensor_parallel_size = {RANKS}\n" if RANKS else ""
        return split + save_small_model(self.home / SMALL)


METRICS_TOKEN = "for-prometheus-alone"
STEP = 0.02
"""Seconds that each step of the script takes."""
GRACE = 1
"""Seconds that a scripted worker has after SIGTERM."""


@pytest.fixture(scope="session")
def service(tmp_path_factory) -> Iterator[Installation]:
    home = tmp_path_factory.mktemp("home")
    with TwoModels(
        home, QUIRE_SHUTDOWN_GRACE="1", QUIRE_METRICS_TOKEN=METRICS_TOKEN
    ) as installation:
        installation.wait_served(MODEL)
        yield installation


@pytest.fixture(scope="session")
def scripted(tmp_path_factory) -> Iterator[ScriptedInstallation]:
    """For tests that kill its processes. Each of them leaves one worker that serves."""
    home = tmp_path_factory.mktemp("scripted")
    with ScriptedInstallation(home, STEP, QUIRE_SHUTDOWN_GRACE=str(GRACE)) as installation:
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
