"""Models that make one key of several tokens equal ``generate``. The tests of models with states
show that they are cached and preempted as any other."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from completions.contract.job_request import LogprobParams
from completions.contract.sampling import SamplingParams
from tests.representatives import stand_for_all
from tests.workers.engine import greedy
from tests.workers.engine.adapters import merge, save_adapter
from tests.workers.engine.backends.compressed.models import CHOSEN, FEW, save
from tests.workers.engine.backends.cuda import test_runner
from tests.workers.engine.backends.tight_engine import build_tight
from tests.workers.engine.driving import request, tokens
from workers.engine.core.request import Request
from workers.engine.exceptions import UnsupportedModel

PROJECTIONS = tuple(
    f"{part}.{name}" for part in ("compressor", "indexer") for name in ("kv_proj", "gate_proj")
)

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers on kernels that it would like


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("deepseek_v4"))


@pytest.mark.represented_by("128-4")
@pytest.mark.parametrize("block_size", stand_for_all([4], [3, 4, 16]))
@pytest.mark.parametrize("chunk", stand_for_all([5, 128], [5, 9, 24, 128]))
def test_texts_below_at_and_above_what_is_chosen_equal_generate(
    model: Path, chunk: int, block_size: int
) -> None:
    """However prompts are cut: decoding crosses the number that is chosen, begins at it, and
    begins far beyond it."""
    most = CHOSEN * FEW
    lengths = (3, most - 5, most - 1, most, most + FEW, 3 * most, 100)
    prompts = [greedy.prompt(length, salt=length) for length in lengths]
    engine = build_tight(
        model,
        max_num_batched_tokens=chunk,
        max_num_seqs=min(8, chunk - 1),
        block_size=block_size,
    )
    requests = [request(str(i), prompt, max_tokens=12) for i, prompt in enumerate(prompts)]
    assert tokens(engine.generate(requests)) == [
        greedy.generate(model, prompt, 12) for prompt in prompts
    ]
    assert engine.stats().kv_blocks_used == 0


@pytest.mark.wide
def test_scored_prompts_choices_and_forced_tokens_equal_the_model_itself(model: Path) -> None:
    prompt = greedy.prompt(70)
    scored = (LogprobParams(0, logprob_start_len=0),)
    params = SamplingParams(temperature=0, max_tokens=1)
    grammar = 'start: "the quick brown fox jumps over the lazy dog" /[a-z]{3,9}/'
    requests = [
        Request((prompt,), params, logprobs=scored, request_id="scored"),
        request("forced", greedy.prompt(30), grammar=grammar, max_tokens=40),
        Request((prompt,), SamplingParams(temperature=0, max_tokens=9, n=3), request_id="n"),
    ]
    score, forced, three = build_tight(model).generate(requests)
    own: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        logs = own(ids, use_cache=False).logits[0].log_softmax(-1)
    expected = logs[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()
    assert score.choices[0].prompt_logprobs is not None
    assert score.choices[0].prompt_logprobs.chosen[1:] == pytest.approx(expected, abs=1e-3)
    assert forced.error is None
    [alone] = build_tight(model, jump_forward=False).generate(requests[1:2])
    assert forced.choices[0].token_ids == alone.choices[0].token_ids
    text = greedy.generate(model, prompt, 9)
    assert [list(choice.token_ids) for choice in three.choices] == [text] * 3


@pytest.mark.wide
def test_the_attention_of_a_gpu_equals_generate(model: Path) -> None:
    """As torch operations, on a CPU."""
    engine = test_runner.make_engine(model, max_num_batched_tokens=17)
    assert engine.forward == "cuda"
    lengths = (3, CHOSEN * FEW - 1, CHOSEN * FEW, 49, 80)
    prompts = [greedy.prompt(length, salt=length) for length in lengths]
    requests = [request(str(i), prompt, max_tokens=9) for i, prompt in enumerate(prompts)]
    assert tokens(engine.generate(requests)) == [
        greedy.generate(model, prompt, 9) for prompt in prompts
    ]


@pytest.mark.wide
def test_an_adapter_changes_the_entries_of_its_own_rows(tmp_path: Path) -> None:
    base = save(tmp_path / "base")
    adapter = save_adapter(tmp_path / "adapter", base, layers=PROJECTIONS)
    merged = merge(base, adapter, dict.fromkeys(PROJECTIONS, 2.0), tmp_path / "merged")
    engine = build_tight(base, adapters={"a": adapter})
    params = SamplingParams(temperature=0, max_tokens=9)
    prompts = [greedy.prompt(60 + i, salt=i) for i in range(4)]
    requests = [
        Request((prompt,), params, adapters=("a" if i % 2 else None,), request_id=str(i))
        for i, prompt in enumerate(prompts)
    ]
    expected = [greedy.generate(merged if i % 2 else base, p, 9) for i, p in enumerate(prompts)]
    assert tokens(engine.generate(requests)) == expected
    assert expected[1] != greedy.generate(base, prompts[1], 9)


@pytest.mark.wide
def test_sixteen_bits_give_texts_of_the_wanted_length(model: Path) -> None:
    engine = build_tight(model, dtype="bfloat16", block_size=16)
    requests = [request(str(i), greedy.prompt(60, salt=i), max_tokens=9) for i in range(3)]
    assert [len(text) for text in tokens(engine.generate(requests))] == [9, 9, 9]


@pytest.mark.represented_by("int8")
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_rounded_weights_are_refused(model: Path, dtype: str) -> None:
    with pytest.raises(UnsupportedModel, match='set dtype = "bfloat16"'):
        build_tight(model, dtype=dtype, block_size=16)
