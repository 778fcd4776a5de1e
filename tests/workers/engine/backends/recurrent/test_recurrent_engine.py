"""Models with states beside the blocks: batched, chunked, cached and preempted as any other."""

from pathlib import Path
from typing import Any

import pytest

from completions.contract.job_request import LogprobParams
from completions.contract.sampling import SamplingParams
from tests.conformance.families.shapes import SIZES
from tests.workers.engine import greedy
from tests.workers.engine.adapters import merge, save_adapter
from tests.workers.engine.backends.compressed.models import SHAPE
from tests.workers.engine.backends.tight_engine import SETTINGS, build_tight
from tests.workers.engine.driving import request, tokens
from tests.workers.engine.tiny_models import save_model
from workers.engine.build import build_engine
from workers.engine.checkpoints.parity.own_attention import OwnAttention
from workers.engine.config import EngineConfig
from workers.engine.core.request import Request
from workers.engine.exceptions import UnsupportedModel

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers on kernels that it would like

_SHAPE = {name: size for name, size in SIZES.items() if name != "vocab_size"}
FAMILIES: dict[str, dict[str, Any]] = {
    "deepseek_v4": SHAPE,
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "mamba": {},
    "qwen3_next": {"num_hidden_layers": 4},
}
"""Rings of tokens, a convolution alone, a recurrence that cannot continue with several tokens, one
that can."""


@pytest.fixture(
    scope="module",
    params=[
        "deepseek_v4",
        "lfm2",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("mamba", "qwen3_next")),
    ],
)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp(request.param), request.param)


def save(folder: Path, family: str) -> Path:
    return save_model(folder, {**_SHAPE, **FAMILIES[family], "model_type": family})


@pytest.mark.represented_by("lfm2")
def test_prompts_share_their_beginnings(family: Path) -> None:
    engine = build_tight(family)
    common = greedy.prompt(30)
    prompts = [common + greedy.prompt(9, salt=i) for i in range(4)]
    requests = [request(str(i), prompt, max_tokens=8) for i, prompt in enumerate(prompts)]
    expected = [greedy.generate(family, prompt, 8) for prompt in prompts]
    assert tokens(engine.generate(requests)) == expected
    together = engine.stats().prefix_cache_hits
    assert together == 3 * 28
    assert tokens(engine.generate(requests)) == expected
    assert engine.stats().prefix_cache_hits == together + 4 * 36
    assert engine.stats().kv_blocks_used == 0


@pytest.mark.represented_by("lfm2")
def test_a_conversation_goes_on_from_its_last_state(family: Path) -> None:
    engine = build_tight(family)
    prompt = greedy.prompt(18)
    [answer] = tokens(engine.generate([request("a", prompt, max_tokens=13, ignore_eos=True)]))
    longer = (*prompt, *answer, 5, 6, 7)
    [further] = tokens(engine.generate([request("b", longer, max_tokens=8)]))
    assert further == greedy.generate(family, longer, 8)
    assert engine.stats().prefix_cache_hits == (18 + 12) // 4 * 4


@pytest.mark.long
def test_preempted_sequences_are_computed_again(family: Path) -> None:
    prompts = [greedy.prompt(5 + 3 * i, salt=i) for i in range(8)]
    requests = [
        request(str(i), prompt, max_tokens=20, ignore_eos=True) for i, prompt in enumerate(prompts)
    ]
    engine = build_tight(family)
    expected = tokens(engine.generate(requests))
    assert engine.stats().preemptions == 0
    crowded = build_tight(family)
    # 208 prompt tokens and 160 more fill 96 blocks.
    assert crowded.pool.allocate(crowded.pool.num_blocks - 40) is not None
    assert tokens(crowded.generate(requests)) == expected
    assert crowded.stats().preemptions > 0


@pytest.mark.long
def test_requests_of_every_kind_equal_those_of_the_general_way(
    family: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def params(**given: Any) -> SamplingParams:
        return SamplingParams(**{"temperature": 0, "max_tokens": 14, **given})

    grammar = 'start: "forced text " /[a-z]{3,9}/ " and more"'
    scored = (LogprobParams(3, logprob_start_len=2),)
    requests = [
        Request((greedy.prompt(30), greedy.prompt(7)), params(n=3), request_id="n"),
        Request((greedy.prompt(40),), params(n=2), grammar, request_id="grammar"),
        Request((greedy.prompt(9),), params(frequency_penalty=0.5), request_id="penalties"),
        Request(
            (greedy.prompt(13),),
            params(),
            published={0: (7, 8, 9)},
            request_id="published",
        ),
        Request((greedy.prompt(50),), params(), logprobs=scored, request_id="scored"),
        Request(
            (greedy.prompt(31),),
            params(),
            return_hidden_states=True,
            request_id="hidden",
        ),
    ]
    ours = build_tight(family).generate(requests)

    def refuse(*_: Any) -> None:
        raise UnsupportedModel("the test says so")

    monkeypatch.setattr(OwnAttention, "compare", refuse)
    general = build_engine(family, EngineConfig(**SETTINGS))
    assert general.forward == "general"
    theirs = general.generate(requests)
    assert tokens(ours) == tokens(theirs)
    mine, other = ours[4].choices[0].prompt_logprobs, theirs[4].choices[0].prompt_logprobs
    assert mine is not None
    assert other is not None
    assert mine.chosen[1:] == pytest.approx(other.chosen[1:], abs=1e-3)


def test_an_adapter_changes_its_own_rows_within_mixers(tmp_path: Path) -> None:
    base = save(tmp_path / "base", "lfm2")
    layers = ("conv.in_proj", "conv.out_proj")
    adapter = save_adapter(tmp_path / "adapter", base, layers=layers)
    merged = merge(base, adapter, dict.fromkeys(layers, 2.0), tmp_path / "merged")
    engine = build_tight(base, adapters={"a": adapter})
    prompts = [greedy.prompt(4 + 11 * i, salt=i) for i in range(4)]
    params = SamplingParams(temperature=0, max_tokens=9)
    requests = [
        Request((prompt,), params, adapters=("a" if i % 2 else None,), request_id=str(i))
        for i, prompt in enumerate(prompts)
    ]
    expected = [greedy.generate(merged if i % 2 else base, p, 9) for i, p in enumerate(prompts)]
    assert tokens(engine.generate(requests)) == expected
    assert expected[1] != greedy.generate(base, prompts[1], 9)


def test_memory_that_holds_no_states_is_refused_with_the_figures(tmp_path: Path) -> None:
    path = save(tmp_path, "mamba")
    with pytest.raises(ValueError, match=r"8 states of \d+ bytes leave -?\d+: raise"):
        build_tight(path, kv_cache_bytes=1000)
