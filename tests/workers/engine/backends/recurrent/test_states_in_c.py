"""States that the C forward computes, in whole engines: the same tokens whatever the neighbours
are, however prompts are cut, and whether they begin in the prefix cache."""

from pathlib import Path

import pytest

from completions.contract.sampling import SamplingParams
from tests.workers.engine import greedy
from tests.workers.engine.backends.cpu.test_decoder import (
    DELTA,
    engine_of,
    save,
    shortfall,
    skip_without,
)
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
DTYPES = ["bfloat16", *(pytest.param(name, marks=pytest.mark.long) for name in ("int8", "int4"))]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("qwen3_5"), "qwen3_5_text", DELTA)


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


@pytest.mark.parametrize("dtype", DTYPES)
def test_tokens_depend_on_nothing_else(path: Path, dtype: str) -> None:
    skip_without(dtype)
    lonely = engine(path, dtype, max_num_seqs=1, max_num_batched_tokens=256)
    alone = [tokens(lonely.generate([each]))[0] for each in requests()]
    assert len({tuple(each) for each in alone}) == REQUESTS
    crowded = engine(path, dtype, max_num_seqs=REQUESTS, max_num_batched_tokens=37)
    assert tokens(crowded.generate(requests())) == alone
    hits = crowded.stats().prefix_cache_hits
    assert hits > 0
    assert tokens(crowded.generate(requests())) == alone
    assert crowded.stats().prefix_cache_hits > 2 * hits


def test_watched_sequences_run_beside_the_others(path: Path) -> None:
    """Through the model's modules, in a second forward of each step."""
    made = engine(path, "bfloat16")
    prompt = greedy.prompt(COMMON + 9)
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    watched = Request((prompt,), params, return_hidden_states=True, request_id="watched")
    others = requests()[:4]
    [first, *rest] = tokens(made.generate([watched, *others]))
    assert shortfall(path, prompt, first) < 0.3
    assert rest == tokens(engine(path, "bfloat16").generate(others))
