"""Models with an indexer over the paged cache: batched, chunked, cached and preempted as any other,
and equal to ``generate``."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from completions.contract.job_request import LogprobParams
from completions.contract.sampling import SamplingParams
from tests.representatives import stand_for_all
from tests.workers.engine import greedy
from tests.workers.engine.backends.cuda import test_runner
from tests.workers.engine.backends.sparse.models import CHOSEN, save
from tests.workers.engine.backends.tight_engine import build_tight
from tests.workers.engine.driving import request, tokens
from workers.engine.core.request import Request
from workers.engine.engine import Engine
from workers.engine.exceptions import UnsupportedAdapter, UnsupportedModel

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers on kernels that it would like


@pytest.fixture(
    scope="module",
    params=[
        "glm_moe_dsa",
        pytest.param("deepseek_v32", marks=pytest.mark.long),
        "minimax_m3_vl_text",
    ],
)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.represented_by("glm_moe_dsa-5")
@pytest.mark.parametrize("chunk", stand_for_all([5, 128], [5, 9, 24, 128]))
def test_texts_below_at_and_above_what_is_chosen_equal_generate(family: Path, chunk: int) -> None:
    """However prompts are cut: decoding crosses the number that is chosen, begins at it, and
    begins far beyond it."""
    lengths = (3, CHOSEN - 5, CHOSEN - 1, CHOSEN, CHOSEN + 1, 3 * CHOSEN, 100)
    prompts = [greedy.prompt(length, salt=length) for length in lengths]
    engine = build_tight(family, max_num_batched_tokens=chunk, max_num_seqs=min(8, chunk - 1))
    requests = [request(str(i), prompt, max_tokens=12) for i, prompt in enumerate(prompts)]
    assert tokens(engine.generate(requests)) == [
        greedy.generate(family, prompt, 12) for prompt in prompts
    ]
    assert engine.stats().kv_blocks_used == 0


@pytest.mark.wide
def test_prompts_share_their_beginnings(family: Path) -> None:
    engine = build_tight(family)
    common = greedy.prompt(40)
    prompts = [common + greedy.prompt(9, salt=i) for i in range(4)]
    requests = [request(str(i), prompt, max_tokens=8) for i, prompt in enumerate(prompts)]
    expected = [greedy.generate(family, prompt, 8) for prompt in prompts]
    assert tokens(engine.generate(requests)) == expected
    together = engine.stats().prefix_cache_hits
    assert together == 3 * 40
    assert tokens(engine.generate(requests)) == expected
    assert engine.stats().prefix_cache_hits == together + 4 * 48


@pytest.mark.wide
def test_preempted_sequences_are_computed_again(family: Path) -> None:
    prompts = [greedy.prompt(5 + 6 * i, salt=i) for i in range(8)]
    requests = [
        request(str(i), prompt, max_tokens=20, ignore_eos=True) for i, prompt in enumerate(prompts)
    ]
    engine = build_tight(family)
    expected = tokens(engine.generate(requests))
    assert engine.stats().preemptions == 0
    crowded = build_tight(family)
    assert crowded.pool.allocate(crowded.pool.num_blocks - 50) is not None
    assert tokens(crowded.generate(requests)) == expected
    assert crowded.stats().preemptions > 0


@pytest.mark.wide
def test_scored_prompts_and_forced_tokens_equal_the_model_itself(family: Path) -> None:
    prompt = greedy.prompt(70)
    scored = (LogprobParams(0, logprob_start_len=0),)
    params = SamplingParams(temperature=0, max_tokens=1)
    grammar = 'start: "the quick brown fox jumps over the lazy dog" /[a-z]{3,9}/'
    requests = [
        Request((prompt,), params, logprobs=scored, request_id="scored"),
        request("forced", greedy.prompt(30), grammar=grammar, max_tokens=40),
    ]
    score, forced = build_tight(family).generate(requests)
    model: Any = AutoModelForCausalLM.from_pretrained(family, dtype=torch.float32)
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        logs = model(ids, use_cache=False).logits[0].log_softmax(-1)
    expected = logs[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()
    assert score.choices[0].prompt_logprobs is not None
    assert score.choices[0].prompt_logprobs.chosen[1:] == pytest.approx(expected, abs=1e-3)
    assert forced.error is None
    [alone] = build_tight(family, jump_forward=False).generate(requests[1:])
    assert forced.choices[0].token_ids == alone.choices[0].token_ids


@pytest.mark.wide
def test_the_attention_of_a_gpu_equals_generate(family: Path) -> None:
    """As torch operations, on a CPU."""
    engine = test_runner.make_engine(family, max_num_batched_tokens=17)
    assert engine.forward == "cuda"
    prompts = [greedy.prompt(length, salt=length) for length in (3, CHOSEN - 1, CHOSEN, 49, 80)]
    requests = [request(str(i), prompt, max_tokens=9) for i, prompt in enumerate(prompts)]
    assert tokens(engine.generate(requests)) == [
        greedy.generate(family, prompt, 9) for prompt in prompts
    ]


def _adapter(folder: Path, path: str, shape: tuple[int, int]) -> Path:
    folder.mkdir()
    draw = torch.Generator().manual_seed(1)
    down, up = torch.randn(2, shape[1], generator=draw), torch.randn(shape[0], 2, generator=draw)
    name = f"base_model.model.{path}"
    tensors = {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 2}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.wide
def test_an_adapter_changes_what_an_indexer_chooses(tmp_path: Path) -> None:
    base = save(tmp_path / "base", "glm_moe_dsa")
    path = "model.layers.0.self_attn.indexer.wq_b"
    adapter = _adapter(tmp_path / "adapter", path, (256, 32))
    engine = build_tight(base, adapters={"a": adapter})
    prompt = greedy.prompt(60)
    params = SamplingParams(temperature=0, max_tokens=9)
    requests = [
        Request((prompt,), params, adapters=(name,), request_id=str(name)) for name in ("a", None)
    ]
    changed, plain = tokens(engine.generate(requests))
    assert plain == greedy.generate(base, prompt, 9)
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.no_grad():
        draw = torch.Generator().manual_seed(1)
        down, up = torch.randn(2, 32, generator=draw), torch.randn(256, 2, generator=draw)
        model.get_submodule(path).weight += up @ down
    model.save_pretrained(tmp_path / "merged")
    assert changed == greedy.generate(tmp_path / "merged", prompt, 9) != plain


def test_an_adapter_of_what_expands_latents_is_refused(tmp_path: Path) -> None:
    base = save(tmp_path / "base", "glm_moe_dsa")
    adapter = _adapter(tmp_path / "a", "model.layers.0.self_attn.kv_b_proj", (160, 16))
    with pytest.raises(UnsupportedAdapter, match="do not see every token"):
        build_tight(base, adapters={"a": adapter})


def test_layers_of_an_indexer_may_be_packed(tmp_path: Path) -> None:
    """In bfloat16, layers of such sizes have no weight of their own any more."""
    sizes = {"hidden_size": 128, "q_lora_rank": 64, "kv_lora_rank": 64, "index_head_dim": 32}
    path = save(tmp_path, "glm_moe_dsa", **sizes)
    engine = build_tight(path, dtype="bfloat16", block_size=16)
    names = {type(module.wk).__name__ for module in _indexers(engine)}
    assert names & {"TiledLinear", "PackedLinear"}
    [text] = tokens(engine.generate([request("r", greedy.prompt(60), max_tokens=9)]))
    assert len(text) == 9


def _indexers(engine: Engine) -> list[Any]:
    runner: Any = engine.runner
    return [m for m in runner._model.model.modules() if hasattr(m, "index_topk")]


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_rounded_weights_are_refused(tmp_path: Path, dtype: str) -> None:
    path = save(tmp_path, "glm_moe_dsa")
    with pytest.raises(UnsupportedModel, match='set dtype = "bfloat16"'):
        build_tight(path, dtype=dtype, block_size=16)
