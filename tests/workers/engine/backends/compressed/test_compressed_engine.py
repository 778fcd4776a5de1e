"""Models that make one key of several tokens: batched, chunked, cached and preempted as any other,
and equal to ``generate``."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from completions.contract.job_request import LogprobParams
from completions.contract.sampling import SamplingParams
from tests.representatives import stand_for_all
from tests.workers.engine import greedy
from tests.workers.engine.backends.compressed.models import CHOSEN, FEW, save
from tests.workers.engine.backends.cuda import test_runner
from tests.workers.engine.driving import request, tokens
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.core.request import Request
from workers.engine.engine import Engine
from workers.engine.exceptions import UnsupportedModel

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers on kernels that it would like

SETTINGS: dict[str, Any] = {
    "device": "cpu", "dtype": "float32", "max_num_seqs": 8, "max_num_batched_tokens": 24,
    "block_size": 4, "kv_cache_bytes": 2**23, "max_model_len": 256,
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("deepseek_v4"))


def engine_of(path: Path, **settings: Any) -> Engine:
    engine = build_engine(path, EngineConfig(**{**SETTINGS, **settings}))
    assert engine.forward == "torch"
    return engine


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
    engine = engine_of(
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


def test_prompts_share_their_beginnings(model: Path) -> None:
    engine = engine_of(model)
    common = greedy.prompt(30)
    prompts = [common + greedy.prompt(9, salt=i) for i in range(4)]
    requests = [request(str(i), prompt, max_tokens=8) for i, prompt in enumerate(prompts)]
    expected = [greedy.generate(model, prompt, 8) for prompt in prompts]
    assert tokens(engine.generate(requests)) == expected
    together = engine.stats().prefix_cache_hits
    assert together == 3 * 28
    assert tokens(engine.generate(requests)) == expected
    assert engine.stats().prefix_cache_hits == together + 4 * 36


def test_a_conversation_goes_on_from_its_last_state(model: Path) -> None:
    engine = engine_of(model)
    prompt = greedy.prompt(18)
    [answer] = tokens(engine.generate([request("a", prompt, max_tokens=13, ignore_eos=True)]))
    longer = (*prompt, *answer, 5, 6, 7)
    [further] = tokens(engine.generate([request("b", longer, max_tokens=8)]))
    assert further == greedy.generate(model, longer, 8)
    assert engine.stats().prefix_cache_hits == (18 + 12) // 4 * 4


def test_preempted_sequences_are_computed_again(model: Path) -> None:
    prompts = [greedy.prompt(5 + 6 * i, salt=i) for i in range(8)]
    requests = [
        request(str(i), prompt, max_tokens=20, ignore_eos=True) for i, prompt in enumerate(prompts)
    ]
    engine = engine_of(model)
    expected = tokens(engine.generate(requests))
    assert engine.stats().preemptions == 0
    crowded = engine_of(model)
    assert crowded.pool.allocate(crowded.pool.num_blocks - 50) is not None
    assert tokens(crowded.generate(requests)) == expected
    assert crowded.stats().preemptions > 0


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
    score, forced, three = engine_of(model).generate(requests)
    own: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        logs = own(ids, use_cache=False).logits[0].log_softmax(-1)
    expected = logs[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()
    assert score.choices[0].prompt_logprobs is not None
    assert score.choices[0].prompt_logprobs.chosen[1:] == pytest.approx(expected, abs=1e-3)
    assert forced.error is None
    [alone] = engine_of(model, jump_forward=False).generate(requests[1:2])
    assert forced.choices[0].token_ids == alone.choices[0].token_ids
    text = greedy.generate(model, prompt, 9)
    assert [list(choice.token_ids) for choice in three.choices] == [text] * 3


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


def test_an_adapter_changes_the_entries_of_its_own_rows(tmp_path: Path) -> None:
    base = save(tmp_path / "base")
    adapter, merged = _adapt(base, tmp_path)
    engine = engine_of(base, adapters={"a": adapter})
    params = SamplingParams(temperature=0, max_tokens=9)
    prompts = [greedy.prompt(60 + i, salt=i) for i in range(4)]
    requests = [
        Request((prompt,), params, adapters=("a" if i % 2 else None,), request_id=str(i))
        for i, prompt in enumerate(prompts)
    ]
    expected = [greedy.generate(merged if i % 2 else base, p, 9) for i, p in enumerate(prompts)]
    assert tokens(engine.generate(requests)) == expected
    assert expected[1] != greedy.generate(base, prompts[1], 9)


def _adapt(base: Path, folder: Path) -> tuple[Path, Path]:
    """An adapter of what compressors and their indexers project, and the base model merged with
    it."""
    adapter, merged = folder / "adapter", folder / "merged"
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    draw = torch.Generator().manual_seed(1)
    tensors = {}
    with torch.no_grad():
        for path, linear in model.named_modules():
            if ".compressor." in path and path.endswith("_proj"):
                down = torch.randn(2, linear.in_features, generator=draw)
                up = torch.randn(linear.out_features, 2, generator=draw)
                tensors[f"base_model.model.{path}.lora_A.weight"] = down
                tensors[f"base_model.model.{path}.lora_B.weight"] = up
                linear.weight += up @ down
    adapter.mkdir()
    save_file(tensors, adapter / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 2}
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    model.save_pretrained(merged)
    AutoTokenizer.from_pretrained(base).save_pretrained(merged)
    return adapter, merged


def test_sixteen_bits_give_texts_of_the_wanted_length(model: Path) -> None:
    engine = engine_of(model, dtype="bfloat16", block_size=16)
    requests = [request(str(i), greedy.prompt(60, salt=i), max_tokens=9) for i in range(3)]
    assert [len(text) for text in tokens(engine.generate(requests))] == [9, 9, 9]


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_rounded_weights_are_refused(model: Path, dtype: str) -> None:
    with pytest.raises(UnsupportedModel, match='set dtype = "bfloat16"'):
        engine_of(model, dtype=dtype, block_size=16)
