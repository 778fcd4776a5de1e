"""Models that make one key of several tokens, under any order of events."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.representatives import stand_for_all
from tests.workers.engine.backends.compressed.models import save
from tests.workers.engine.whole.test_property import CONFIG, load_as_on_a_gpu, run_machine
from workers.engine.backends.base.budget import CacheBudget
from workers.engine.backends.base.loaded_model import LoadedModel
from workers.engine.checkpoints.loader import load_model

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers on kernels that it would like


@pytest.mark.wide
@pytest.mark.hypothesis
@pytest.mark.parametrize(
    ("load", "block_size"),
    stand_for_all(
        [(load_model, 4), (load_as_on_a_gpu, 3)],
        [(load, size) for load in (load_model, load_as_on_a_gpu) for size in (1, 3, 4, 16)],
    ),
)
def test_any_order_of_events(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    load: Callable[..., LoadedModel],
    block_size: int,
) -> None:
    """In few blocks, with room for few saved states."""
    path = save(tmp_path / "model")
    config = replace(CONFIG, block_size=block_size)
    few, many = CacheBudget(96 // block_size, 5, 0), CacheBudget(512, 0, 0)

    def divide(*given: Any) -> CacheBudget:
        return few if given[3].enable_prefix_caching else many

    monkeypatch.setattr(CacheBudget, "divide", divide)
    run_machine(path, load(path, config), config)
