from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from completions.contract.sampling import SamplingParams
from tests.workers.engine import greedy
from tests.workers.engine.tiny_models import LLAMA, save_model
from workers.engine.backends.base.paged import PagedModel
from workers.engine.build import build_engine
from workers.engine.checkpoints.rotary import keep_frequencies
from workers.engine.config import EngineConfig
from workers.engine.core.request import Request

DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}


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
