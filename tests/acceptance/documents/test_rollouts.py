"""The trainer's loop of docs/rollouts.md, whose log probabilities transformers computes again."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from quire_client import Quire
from tests.acceptance.service import MODEL, MODEL_FOLDER, ROOT, Installation

pytestmark = [pytest.mark.acceptance, pytest.mark.long]

TOLERANCE = 1e-3
COUNT = 8


class InFloat32(Installation):
    """The demo model in float32, and no other."""

    def demo_model(self) -> str:
        return (
            f'[models.{MODEL}]\npath = "{MODEL_FOLDER}"\ndtype = "float32"\nmax_num_seqs = 16\n'
            'max_model_len = 1024\ntool_format = "hermes"\n'
        )


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with InFloat32(tmp_path_factory.mktemp("rollouts")) as service:
        service.wait_served(MODEL)
        yield service


@pytest.fixture(scope="module")
def loop() -> dict[str, Any]:
    """What the document's code defines."""
    page = (ROOT / "docs" / "rollouts.md").read_text()
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)  # noqa: S102 - the document's own code
    return names


@pytest.mark.parametrize("first", range(0, 64, COUNT))
def test_each_log_probability_is_found_again(
    service: Installation, loop: dict[str, Any], first: int
) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL_FOLDER, dtype=torch.float32)
    with Quire(f"{service.url}/v1", service.key) as quire:
        trajectories = loop["collect"](quire, range(first, first + COUNT))
    assert len(trajectories) == COUNT
    seen = 0
    for lines in trajectories:
        assert len(lines) == 3
        for answer, found in loop["recompute"](model, lines):
            assert len(found) == len(answer["token_ids"])
            assert found == pytest.approx(answer["logprobs"]["chosen"], abs=TOLERANCE)
            forced = [
                score
                for score, origin in zip(found, answer["token_mask"], strict=True)
                if origin == 2
            ]
            assert forced == pytest.approx([0.0] * len(forced), abs=TOLERANCE)
            seen += len(found)
    assert seen > 30 * COUNT
