"""The general way against ``generate``, and against the paged forward of a model that has both."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from completions.contract.job_request import LogprobParams
from completions.contract.sampling import SamplingParams
from tests.representatives import stand_for_all
from tests.workers.engine import greedy
from tests.workers.engine.adapters import save_adapter
from tests.workers.engine.driving import request, tokens
from tests.workers.engine.tiny_models import LLAMA, save_model
from workers.engine.backends.fallback.model import FallbackModel, GeneratedSequence
from workers.engine.build import build_engine
from workers.engine.checkpoints.parity.own_attention import OwnAttention
from workers.engine.config import EngineConfig
from workers.engine.core.output import Completion
from workers.engine.core.request import Audience, Request
from workers.engine.engine import Engine
from workers.engine.exceptions import EngineError, UnsupportedModel

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers on kernels that it would like

SHAPE = {key: value for key, value in LLAMA.items() if key != "model_type"}
SETTINGS: dict[str, Any] = {
    "device": "cpu", "dtype": "float32", "max_num_seqs": 8, "max_num_batched_tokens": 24,
    "block_size": 4, "kv_cache_bytes": 2**22,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "bloom": {},
    "falcon": {"alibi": True},
    "gptj": {"rotary_dim": 16},
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 64, "attention_window_size": 16},
    "rwkv": {},
}  # fmt: skip
LENGTHS = (1, 6, 17, 33, 48, 70)


@pytest.fixture(
    scope="module", params=stand_for_all(["bloom", "recurrent_gemma"], sorted(FAMILIES))
)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = {**SHAPE, **FAMILIES[request.param], "model_type": request.param}
    return save_model(tmp_path_factory.mktemp(request.param), options)


@pytest.fixture(scope="module")
def adapter(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_adapter(tmp_path_factory.mktemp("adapter"), tiny_llama)


def general(path: Path, **settings: Any) -> Engine:
    """An engine that runs the general way whatever the model."""

    def refuse(*_: Any) -> None:
        raise UnsupportedModel("the test says so")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OwnAttention, "compare", refuse)
        engine = build_engine(path, EngineConfig(**{**SETTINGS, **settings}))
    assert engine.forward == "general"
    return engine


def paged(path: Path, **settings: Any) -> Engine:
    engine = build_engine(path, EngineConfig(**{**SETTINGS, **settings}))
    assert engine.forward == "torch"
    return engine


@pytest.mark.represented_by("bloom")
def test_a_batch_of_unequal_prompts_equals_generate(family: Path) -> None:
    engine = build_engine(family, EngineConfig(**SETTINGS, max_model_len=512))
    assert engine.forward == "general"
    prompts = [greedy.prompt(length, salt=length) for length in LENGTHS]
    completions = engine.generate(
        [request(str(i), prompt, max_tokens=12) for i, prompt in enumerate(prompts)]
    )
    assert tokens(completions) == [greedy.generate(family, prompt, 12) for prompt in prompts]


def test_a_prompt_may_contain_the_padding_token(tmp_path: Path) -> None:
    """`generate` takes it for padding unless it is told otherwise."""
    path = save_model(tmp_path, {**SHAPE, "model_type": "bloom", "pad_token_id": 9})
    engine = build_engine(path, EngineConfig(**SETTINGS, max_model_len=512))
    prompt = (9, 9, 20, 30, 9, 40, 50, 60)
    completions = engine.generate([request("r", prompt, max_tokens=8)])
    assert tokens(completions) == [greedy.generate(path, prompt, 8)]


def test_a_model_that_pads_its_inputs_needs_no_padding_token(tmp_path: Path) -> None:
    options = {
        **SHAPE, "model_type": "reformer", "is_decoder": True, "axial_pos_shape": [16, 32],
        "axial_pos_embds_dim": [32, 32], "attn_layers": ["local", "lsh"], "hash_seed": 0,
        "attention_head_size": 16, "feed_forward_size": 96, "num_buckets": 4,
        "local_attn_chunk_length": 16, "lsh_attn_chunk_length": 16,
    }  # fmt: skip
    path = save_model(tmp_path, options)
    prompt = greedy.prompt(17)
    expected = greedy.generate(path, prompt, 8)
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "pad_token_id": None}))
    engine = build_engine(path, EngineConfig(**SETTINGS))
    assert tokens(engine.generate([request("r", prompt, max_tokens=8)])) == [expected]


def test_a_forward_that_fails_ends_its_own_request_only(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = general(tiny_llama)
    extend = GeneratedSequence.extend

    def fail(self: GeneratedSequence, token_ids: list[int], every_row: bool = False) -> Any:
        if self.length + len(token_ids) == 19:
            raise TypeError("no padding")
        return extend(self, token_ids, every_row)

    monkeypatch.setattr(GeneratedSequence, "extend", fail)
    prompts = [greedy.prompt(length) for length in (5, 15, 19, 25)]
    done = engine.generate([request(str(i), p, max_tokens=9) for i, p in enumerate(prompts)])
    assert [isinstance(each.error, EngineError) for each in done] == [False, True, True, False]
    for i in (0, 3):
        assert tokens([done[i]]) == [greedy.generate(tiny_llama, prompts[i], 9)]
    assert tokens(engine.generate([request("after", prompts[0], max_tokens=9)])) == tokens(
        [done[0]]
    )


@pytest.mark.wide
def test_a_preempted_sequence_is_computed_again(tiny_llama: Path) -> None:
    state = 2 * 2 * 2 * 16 * 4  # of a token: 2 layers, key and value, 2 heads of 16, float32
    engine = general(tiny_llama, kv_cache_bytes=24 * 4 * state + 8 * 100)
    prompts = [greedy.prompt(5 + 3 * i, salt=i) for i in range(8)]
    completions = engine.generate(
        [request(str(i), p, max_tokens=40) for i, p in enumerate(prompts)]
    )
    assert tokens(completions) == [greedy.generate(tiny_llama, p, 40) for p in prompts]
    assert engine.stats().preemptions > 5
    assert engine.stats().kv_blocks_used == 0


def test_a_step_without_memory_is_not_repeated(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sequences before the one that failed are a step ahead of the others."""
    engine = general(tiny_llama, max_num_batched_tokens=64)
    call = FallbackModel.call
    calls = iter(range(100))

    def scarce(*args: Any) -> Any:
        if next(calls) == 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return call(*args)

    monkeypatch.setattr(FallbackModel, "call", scarce)
    with pytest.raises(torch.OutOfMemoryError):
        engine.generate([request(str(i), greedy.prompt(5, salt=i)) for i in range(3)])


def test_requests_of_every_kind_equal_those_over_pages(tiny_llama: Path) -> None:
    def params(**given: Any) -> SamplingParams:
        return SamplingParams(**{"temperature": 1.0, "max_tokens": 20, "seed": 5, **given})

    grammar = 'start: "forced text " /[a-z]{3,9}/ " and more"'
    requests = [
        Request((greedy.prompt(30), greedy.prompt(7)), params(n=3), request_id="n"),
        Request((greedy.prompt(11),), params(stop=("e",), min_tokens=4), request_id="stop"),
        Request((greedy.prompt(40),), params(n=2), grammar, request_id="grammar"),
        Request(
            (greedy.prompt(9),),
            params(frequency_penalty=0.5, top_p=0.9),
            request_id="penalties",
        ),
        Request(
            (greedy.prompt(13),),
            params(),
            published={0: (7, 8, 9)},
            request_id="published",
        ),
    ]
    assert tokens(general(tiny_llama).generate(requests)) == tokens(
        paged(tiny_llama).generate(requests)
    )


def test_log_probabilities_and_hidden_states_equal_those_over_pages(tiny_llama: Path) -> None:
    def ask(name: str, prompt: tuple[int, ...], **fields: Any) -> Request:
        return Request(
            (prompt,),
            SamplingParams(temperature=0, max_tokens=6),
            **fields,
            request_id=name,
        )

    requests = [
        ask("plain", greedy.prompt(9)),
        ask("prompt", greedy.prompt(50), logprobs=(LogprobParams(3, logprob_start_len=2),)),
        ask("hidden", greedy.prompt(31), return_hidden_states=True),
    ]
    ours, theirs = general(tiny_llama).generate(requests), paged(tiny_llama).generate(requests)
    assert tokens(ours) == tokens(theirs)
    for mine, other in ((ours[1].choices[0], theirs[1].choices[0]),):
        assert mine.prompt_logprobs is not None
        assert other.prompt_logprobs is not None
        np.testing.assert_allclose(
            mine.prompt_logprobs.chosen, other.prompt_logprobs.chosen, atol=1e-4
        )
    assert_same_hidden_states(ours[2], theirs[2])


def test_the_hidden_state_beside_a_wholly_scored_prompt_is_the_last_one(tiny_llama: Path) -> None:
    """The step then has as many rows of logits as tokens, in another order."""
    ask = Request((greedy.prompt(9),),
        SamplingParams(temperature=0, max_tokens=1),
        return_hidden_states=True, logprobs=(LogprobParams(1, logprob_start_len=0),),
     request_id="r")  # fmt: skip
    [ours], [theirs] = (
        engine.generate([ask]) for engine in (general(tiny_llama), paged(tiny_llama))
    )
    assert_same_hidden_states(ours, theirs)


def assert_same_hidden_states(ours: Completion, theirs: Completion) -> None:
    mine, other = (np.array(each.choices[0].hidden_states) for each in (ours, theirs))
    np.testing.assert_allclose(mine, other, atol=1e-3)


def test_experts_equal_those_over_pages(tmp_path: Path) -> None:
    options = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    path = save_model(tmp_path, options)
    ask = Request((greedy.prompt(30),),
        SamplingParams(temperature=0, max_tokens=5),
        return_routed_experts=True,
     request_id="r")  # fmt: skip
    [ours], [theirs] = (engine.generate([ask]) for engine in (general(path), paged(path)))
    assert np.array_equal(ours.choices[0].routed_experts, theirs.choices[0].routed_experts)


@pytest.mark.wide
def test_adapters_change_their_own_rows(tiny_llama: Path, adapter: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=9)
    requests = [
        Request((greedy.prompt(20, salt=i),), params, adapters=(name,), request_id=str(i))
        for i, name in enumerate(("a", None, "a", None))
    ]
    made = tokens(general(tiny_llama, adapters={"a": adapter}).generate(requests))
    assert made == tokens(paged(tiny_llama, adapters={"a": adapter}).generate(requests))
    assert made[0] != tokens(general(tiny_llama).generate([request("b", greedy.prompt(20))]))[0]


def test_a_dynamic_rotary_embedding_knows_no_other_sequence(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    options = {**LLAMA, "max_position_embeddings": 32, "rope_parameters": rope}
    engine = general(save_model(tmp_path, options), max_model_len=32)
    [state, other] = (engine.runner._model.begin() for _ in range(2))  # type: ignore[union-attr]
    prompt = list(greedy.prompt(40))
    with torch.inference_mode():
        alone = state.extend(prompt)
        other.extend(list(greedy.prompt(60)))
        after = engine.runner._model.begin().extend(prompt)  # type: ignore[union-attr]
    assert torch.equal(alone, after)


def test_int8_is_not_served_another_way(tmp_path: Path) -> None:
    path = save_model(tmp_path, {**SHAPE, "model_type": "bloom"})
    with pytest.raises(UnsupportedModel):
        build_engine(path, EngineConfig(**{**SETTINGS, "dtype": "int8"}, max_model_len=9))


def test_a_prompt_is_not_cut_for_a_stream(tiny_llama: Path) -> None:
    """Its last chunk would take as long as the whole prompt."""
    engine = general(tiny_llama, max_num_batched_tokens=512, step_ms=1.0)
    params = SamplingParams(max_tokens=50, ignore_eos=True)
    engine.submit(Request(((5, 6, 7),), params, audience=Audience.TOKENS, request_id="reader"))
    for _ in range(5):
        engine.turn(wait=False)
    engine.submit(Request((tuple(range(1, 200)),), params, request_id="long"))
    assert {output.request_id for output in engine.turn(wait=False)} == {"reader", "long"}
