"""Installations whose engine is a script: everything around it is real, and may be killed."""

from collections.abc import Iterator

import pytest

from tests.acceptance.service import ScriptedInstallation

STEP = 0.01


@pytest.fixture(scope="package")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedInstallation]:
    """One for all tests that leave it whole."""
    home = tmp_path_factory.mktemp("faults")
    with ScriptedInstallation(home, STEP, QUIRE_STEP_LIMIT="6") as service:
        yield service
