"""Each test has a storage of its own."""

import pytest


@pytest.fixture(autouse=True)
def _own_storage(folder: object) -> None:
    """No test writes into the storage of the test run."""
