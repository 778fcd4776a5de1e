"""Whole engines over the C forward: the same tokens whatever the neighbours are, however prompts
are cut, and whether they begin in the prefix cache."""

from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from completions.contract.sampling import SamplingParams
from tests.representatives import stand_for_all
from tests.workers.engine import greedy
from tests.workers.engine.backends.cpu.shapes import RECOGNISED, SHAPES
from tests.workers.engine.backends.cpu.test_decoder import engine_of, save, shortfall, skip_without
from tests.workers.engine.driving import tokens
from workers.engine.backends.cpu.layers.library import load_library
from workers.engine.core.request import Request
from workers.engine.engine import Engine

pytestmark = [
    pytest.mark.skipif(load_library() is None, reason="needs the C kernels"),
    pytest.mark.filterwarnings("ignore"),  # transformers on kernels that it would like
]

COMMON = 48
REQUESTS = 24
MODELS = ("qwen3_5_text", "gemma4_text", "lfm2", "granitemoehybrid with states")
"""Models that keep more than keys and values of each layer, or less."""
OTHERS = (
    "gemma4_text with experts", "hunyuan_v1_dense", "hunyuan_v1_moe", "minimax_m2", "apertus",
    "olmo with clips", "hyperclovax", "llama4_text", "ministral3", "granitemoehybrid",
    "granitemoehybrid with experts", "granitemoehybrid with states and experts", "mellum", "hy_v3",
    "lfm2_moe", "nemotron_h", "nemotron_h with experts", "falcon_h1", "falcon_h1 with norms",
    "bamba", "qwen3_next", "qwen3_5_moe_text", "cohere2", "exaone4", "exaone_moe",
)  # fmt: skip
QUICK = {(name, "bfloat16") for name in ("gemma4_text", "granitemoehybrid with states")}
"""One that keeps less, and one that keeps states."""
CASES = stand_for_all(QUICK, product(MODELS + OTHERS, ("bfloat16", "int8", "int4")))


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def make(name: str) -> Path:
        return save(tmp_path_factory.mktemp("model"), name, {**RECOGNISED, **SHAPES}[name])

    return make


def requests() -> list[Request]:
    """Random draws, so that a difference in the last bits shows; half of them share a beginning."""
    made = []
    for i in range(REQUESTS):
        own = greedy.prompt(5 + 7 * i % 60, salt=i)
        prompt = greedy.prompt(COMMON) + own if i % 2 else own
        params = SamplingParams(max_tokens=20, temperature=1.5, seed=i, ignore_eos=True)
        made.append(Request((prompt,), params, request_id=str(i)))
    return made


def engine(path: Path, dtype: str, **settings: int) -> Engine:
    made = engine_of(path, dtype=dtype, kv_cache_bytes=2**25, **settings)
    assert made.forward == "c"
    return made


@pytest.mark.represented_by("gemma4_text-bfloat16")
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_tokens_depend_on_nothing_else(
    folder_of: Callable[[str], Path], name: str, dtype: str
) -> None:
    skip_without(dtype)
    path = folder_of(name)
    lonely = engine(path, dtype, max_num_seqs=1, max_num_batched_tokens=256)
    alone = [tokens(lonely.generate([each]))[0] for each in requests()]
    assert len({tuple(each) for each in alone}) == REQUESTS
    crowded = engine(path, dtype, max_num_seqs=REQUESTS, max_num_batched_tokens=37)
    assert tokens(crowded.generate(requests())) == alone
    hits = crowded.stats().prefix_cache_hits
    assert hits > 0
    assert tokens(crowded.generate(requests())) == alone
    assert crowded.stats().prefix_cache_hits > 2 * hits


@pytest.mark.wide
@pytest.mark.parametrize(
    "name", stand_for_all(["gemma4_text", "lfm2"], [*MODELS, "nemotron_h", "falcon_h1"])
)
def test_watched_sequences_run_beside_the_others(
    folder_of: Callable[[str], Path], name: str
) -> None:
    """Through the model's modules, in a second forward of each step."""
    path = folder_of(name)
    made = engine(path, "bfloat16")
    prompt = greedy.prompt(COMMON + 9)
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    watched = Request((prompt,), params, return_hidden_states=True, request_id="watched")
    others = requests()[:4]
    [first, *rest] = tokens(made.generate([watched, *others]))
    assert shortfall(path, prompt, first) < 0.3
    assert rest == tokens(engine(path, "bfloat16").generate(others))
