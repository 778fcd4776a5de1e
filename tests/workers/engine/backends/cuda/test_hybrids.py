"""Models with states beside the pages, by the GPU's code: on the CPU and on a pretended device."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from completions.contract.job_request import LogprobParams
from completions.contract.sampling import SamplingParams
from tests.conformance.families.shapes import SIZES
from tests.representatives import stand_for_all
from tests.workers.engine import greedy
from tests.workers.engine.backends.compressed.models import SHAPE
from tests.workers.engine.backends.cuda.test_devices import CONFIG, KINDS, ask, make_engine
from tests.workers.engine.backends.cuda.test_runner import EagerGraphs
from tests.workers.engine.backends.cuda.without_gpu.pretend_device import (
    DEVICE,
    PretendDevice,
    pretended,
)
from tests.workers.engine.driving import request, tokens
from tests.workers.engine.tiny_models import save_model
from workers.engine.backends.cuda import runner as model_runner
from workers.engine.backends.cuda.runner import CudaRunner
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.core.request import Request
from workers.engine.engine import Engine

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers on kernels that it would like

FAMILIES: dict[str, dict[str, Any]] = {
    "deepseek_v4": SHAPE,
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "mamba": {},
    "qwen3_5_text": {"num_hidden_layers": 4},
}
"""Rings of tokens, a convolution alone, a recurrence that cannot continue with several tokens, one
that can."""
PROMPTS = [
    (greedy.prompt(30) if i % 2 else ()) + greedy.prompt(5 + 9 * i, salt=i) for i in range(5)
]
"""Over chunks, and some with a common beginning."""
ASKED = [request(str(i), prompt, max_tokens=9) for i, prompt in enumerate(PROMPTS)]


CAPTURED = stand_for_all(["lfm2"], [name for name in FAMILIES if name != "deepseek_v4"])


@pytest.fixture(scope="module", params=stand_for_all(["lfm2"], FAMILIES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_family(tmp_path_factory.mktemp(request.param), request.param)


def save_family(folder: Path, name: str) -> Path:
    sizes = {key: size for key, size in SIZES.items() if key != "vocab_size"}
    return save_model(folder, {**sizes, **FAMILIES[name], "model_type": name})


def engine_on(device: torch.device, path: Path) -> Engine:
    engine = make_engine(path, None, "float32", device)
    assert engine.forward == "cuda"
    assert isinstance(engine.runner, CudaRunner)
    assert not engine.runner.looks_ahead  # the states of a step follow those of the one before
    assert not engine.runner.repeats_steps
    return engine


def test_they_say_what_transformers_generates(family: Path) -> None:
    engine = engine_on(torch.device("cpu"), family)
    expected = [greedy.generate(family, prompt, 9) for prompt in PROMPTS]
    assert tokens(engine.generate(ASKED)) == expected
    hits = engine.stats().prefix_cache_hits
    assert tokens(engine.generate(ASKED)) == expected
    assert engine.stats().prefix_cache_hits > 2 * hits


@pytest.mark.wide
def test_requests_of_every_kind_equal_those_of_a_cpu(family: Path) -> None:
    """Tokens that a grammar forces continue a state several at once."""
    requests = [ask(kind, 5 + 7 * i) for i, kind in enumerate(KINDS) if kind != "adapted"]
    config = EngineConfig(**CONFIG, device="cpu", dtype="float32")
    expected = build_engine(family, config).generate(requests)
    engine = engine_on(torch.device("cpu"), family)
    assert tokens(engine.generate(requests)) == tokens(expected)


@pytest.mark.wide
def test_preempted_sequences_are_computed_again(family: Path) -> None:
    requests = [
        request(str(i), greedy.prompt(5 + 3 * i, salt=i), max_tokens=20, ignore_eos=True)
        for i in range(6)
    ]
    engine = engine_on(torch.device("cpu"), family)
    expected = tokens(engine.generate(requests))
    assert engine.stats().preemptions == 0
    crowded = engine_on(torch.device("cpu"), family)
    # 75 prompt tokens and 120 more fill 51 blocks.
    assert crowded.pool.allocate(crowded.pool.num_blocks - 25) is not None
    assert tokens(crowded.generate(requests)) == expected
    assert crowded.stats().preemptions > 0


@pytest.mark.wide
def test_steps_that_find_windows_on_the_host_are_not_captured(tmp_path: Path) -> None:
    runner = engine_on(torch.device("cpu"), save_family(tmp_path, "deepseek_v4")).runner
    assert isinstance(runner, CudaRunner)
    assert runner.capture_with_others() is None


@pytest.mark.wide
def test_their_states_are_on_the_device(family: Path) -> None:
    expected = [greedy.generate(family, prompt, 9) for prompt in PROMPTS]
    with pretended():
        engine = engine_on(DEVICE, family)
        for _ in range(2):
            PretendDevice.num_uploads = 0
            assert tokens(engine.generate(ASKED)) == expected
            assert PretendDevice.num_uploads == 0  # no step waits for a copy
    assert engine.stats().prefix_cache_hits > 0


@pytest.mark.represented_by("lfm2-cpu")
@pytest.mark.parametrize("device", [torch.device("cpu"), DEVICE], ids=["cpu", "pretended"])
@pytest.mark.parametrize("family", CAPTURED, indirect=True)
def test_single_tokens_are_replayed_with_their_states(
    family: Path, monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    """In graphs that pad; prompts, forced tokens and the first tokens of sequences run eagerly.
    States that a graph computed are saved, and continued by others."""
    monkeypatch.setattr(model_runner, "DecodeGraphs", EagerGraphs)
    expected = [greedy.generate(family, prompt, 9) for prompt in PROMPTS]
    kinds = [kind for kind in KINDS if kind not in ("adapted", "scored")]
    requests = [ask(kind, 5 + 7 * i) for i, kind in enumerate(kinds)]
    uncaptured = engine_on(torch.device("cpu"), family)
    plain = tokens(uncaptured.generate(requests))
    conversation = Request(
        ((*PROMPTS[1], *expected[1], 5, 6, 7),),
        SamplingParams(temperature=0, max_tokens=9),
        logprobs=(LogprobParams(0),),
        request_id="conversation",
    )
    [further] = uncaptured.generate([conversation])
    with nullcontext() if device.type == "cpu" else pretended():
        engine = engine_on(device, family)
        runner = engine.runner
        assert isinstance(runner, CudaRunner)
        with torch.inference_mode():
            graphs = runner.graphs = runner.capture()
        assert isinstance(graphs, EagerGraphs)
        PretendDevice.num_uploads = 0
        for _ in range(2):
            assert tokens(engine.generate(ASKED)) == expected
        hits = engine.stats().prefix_cache_hits
        [continued] = engine.generate([conversation])
        [[choice], [other]] = continued.choices, further.choices
        assert choice.logprobs is not None
        assert other.logprobs is not None
        assert choice.logprobs.chosen == pytest.approx(other.logprobs.chosen, abs=1e-4)
        assert engine.stats().prefix_cache_hits - hits > len(PROMPTS[1])
        assert PretendDevice.num_uploads == 0  # no step waits for a copy
        assert tokens(engine.generate(requests)) == plain
    assert 1 < max(graphs.replayed) <= runner._tables.num_slots
