from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from completions.contract.sampling import SamplingParams
from tests.workers.engine import greedy
from tests.workers.engine.tiny_models import LLAMA, save_model
from workers.engine.backends.base.paged import PagedModel
from workers.engine.build import build_engine
from workers.engine.checkpoints.loader import load_model
from workers.engine.checkpoints.rotary import keep_frequencies
from workers.engine.config import EngineConfig
from workers.engine.core.request import Request

DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
TRAINED = 32
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "factor": 16.0,
    "original_max_position_embeddings": TRAINED,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [1.5 + 0.7 * i for i in range(8)],
}  # fmt: skip
OF_LONGROPE: dict[str, dict[str, Any]] = {
    "llama": {},
    "phi3": {"original_max_position_embeddings": TRAINED},
    "phimoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
}
"""Families whose rotary modules differ: the last one reads the factors in each forward."""


def make_model(**options: Any) -> Any:
    config = CONFIG_MAPPING["llama"](**{**LLAMA, "max_position_embeddings": 64, **options})
    return AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(("max_len", "kind"), [(64, "default"), (65, "dynamic")])
def test_frequencies_are_kept_if_no_sequence_becomes_too_long(max_len: int, kind: str) -> None:
    model = make_model(rope_parameters=DYNAMIC)
    keep_frequencies(model, max_len)
    assert model.model.rotary_emb.rope_type == kind


def test_other_kinds_stay_and_layers_have_their_own() -> None:
    model = make_model(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4})
    rotary = model.model.rotary_emb
    keep_frequencies(model, 64)
    assert rotary.rope_type == "linear"
    rotary.rope_type = {"full_attention": "dynamic", "sliding_attention": "default"}
    keep_frequencies(model, 64)
    assert set(rotary.rope_type.values()) == {"default"}


def test_a_dynamic_model_says_what_transformers_generates(tmp_path: Path) -> None:
    path = save_model(
        tmp_path, {**LLAMA, "max_position_embeddings": 128, "rope_parameters": DYNAMIC}
    )
    config = EngineConfig(device="cpu", dtype="float32", kv_cache_bytes=2**22)
    engine = build_engine(path, config)
    paged = engine.runner._model  # type: ignore[union-attr]
    assert isinstance(paged, PagedModel)
    assert paged.model.model.rotary_emb.rope_type == "default"  # type: ignore[union-attr]
    prompt = greedy.prompt(100)
    ask = Request((prompt,), SamplingParams(max_tokens=10, temperature=0), request_id="r")
    (completion,) = engine.generate([ask])
    assert completion.choices[0].token_ids == greedy.generate(path, prompt, 10)


def test_c_computes_a_dynamic_model(tmp_path: Path) -> None:
    path = save_model(
        tmp_path, {**LLAMA, "max_position_embeddings": 128, "rope_parameters": DYNAMIC}
    )
    config = EngineConfig(device="cpu", dtype="bfloat16", kv_cache_bytes=2**22)
    assert build_engine(path, config).forward == "c"


def make_rotary(family: str, **changes: Any) -> Any:
    rope = {**LONGROPE, "short_mscale": 1.1, "long_mscale": 1.2, **changes}
    options = {**LLAMA, **OF_LONGROPE[family], "max_position_embeddings": 512}
    config = CONFIG_MAPPING[family](**options, rope_parameters=rope)
    return AutoModelForCausalLM.from_config(config)


def compute_angles(model: Any, longest: int) -> torch.Tensor:
    """The tables of the first positions of a batch whose longest sequence is given."""
    positions = torch.tensor([[0, 1, 2, longest - 1]])
    tables = model.model.rotary_emb(torch.empty(0), positions)
    return torch.cat([table[0, :3] for table in tables])


@pytest.mark.parametrize("family", OF_LONGROPE)
@pytest.mark.parametrize(("max_len", "kept"), [(TRAINED, "short"), (TRAINED + 1, "long")])
def test_longrope_has_the_factors_for_the_longest_sequence_that_may_come(
    family: str, max_len: int, kept: str
) -> None:
    """The same as a model whose factors for short and for long sequences are those."""
    model = make_rotary(family)
    keep_frequencies(model, max_len)
    factor, scale = LONGROPE[f"{kept}_factor"], 1.1 if kept == "short" else 1.2
    either: dict[str, Any] = {"short_factor": factor, "long_factor": factor}
    expected = make_rotary(family, **either, short_mscale=scale, long_mscale=scale)
    lengths = (8, TRAINED) if kept == "short" else (8, TRAINED, 100)
    for longest in lengths:
        assert torch.equal(compute_angles(model, longest), compute_angles(expected, longest))


def save_phi(folder: Path) -> Path:
    options = {**LLAMA, **OF_LONGROPE["phi3"], "model_type": "phi3", "rope_parameters": LONGROPE}
    return save_model(folder, {**options, "max_position_embeddings": 512})


@pytest.mark.represented_by("None-9")
@pytest.mark.parametrize(
    ("max_model_len", "length"), [(None, 9), (TRAINED, TRAINED - 10), (512, TRAINED + 1), (512, 90)]
)
def test_longrope_says_what_transformers_generates_with_the_same_factors(
    tmp_path: Path, max_model_len: int | None, length: int
) -> None:
    path = save_phi(tmp_path)
    config = EngineConfig(
        device="cpu", dtype="float32", kv_cache_bytes=2**22, max_model_len=max_model_len
    )
    engine = build_engine(path, config)
    assert engine.forward == "torch"
    prompts = [greedy.prompt(length), greedy.prompt(5, salt=1)]
    params = SamplingParams(max_tokens=10, temperature=0)
    asked = [Request((p,), params, request_id=str(i)) for i, p in enumerate(prompts)]
    completion, _ = engine.generate(asked)
    assert completion.choices[0].token_ids == greedy.generate(path, prompts[0], 10)


@pytest.mark.parametrize("max_model_len", [None, 512])
def test_c_computes_longrope(tmp_path: Path, max_model_len: int | None) -> None:
    config = EngineConfig(
        device="cpu", dtype="bfloat16", kv_cache_bytes=2**22, max_model_len=max_model_len
    )
    loaded = load_model(save_phi(tmp_path), config)
    assert (loaded.forward, loaded.max_model_len) == ("c", max_model_len or TRAINED)
