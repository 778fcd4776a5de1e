"""The model that the tests quantize."""

from pathlib import Path

import pytest

from tests.workers.engine.checkpoints.quantized.stored_formats import MODEL
from tests.workers.engine.tiny_models import save_model


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("plain"), MODEL)
