"""GGUF files of hybrids, of the smallest shape that the kernels take, are computed in C."""

from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from gguf import GGMLQuantizationType
from transformers import AutoModelForCausalLM

from completions.contract.sampling import SamplingParams
from tests.representatives import stand_for_all
from tests.workers.engine.checkpoints.quantized.gguf.families import (
    FAMILIES,
    make_model,
    write_family,
)
from workers.engine.backends.cpu.layers.library import load_library
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.core.request import Request
from workers.preparation import gguf_checkpoint

pytestmark = pytest.mark.skipif(load_library() is None, reason="needs the C kernels")


class Shape(NamedTuple):
    """What differs from the family of this name in the model, and in what its file says."""

    options: dict[str, Any]
    metadata: dict[str, Any]


_WIDE = {"hidden_size": 64, "intermediate_size": 96}
_STORED_WIDE = {"embedding_length": 64, "feed_forward_length": 96}
_STORED_HEADS = {"attention.key_length": 16, "attention.value_length": 16}
_SPACE = {**_WIDE, "mamba_d_head": 16, "shared_intermediate_size": 32}
_STORED_SPACE = {**_STORED_WIDE, "ssm.inner_size": 128, "expert_shared_feed_forward_length": 32}
SHAPES = {
    "granitehybrid dense": Shape(_SPACE, _STORED_SPACE),
    "granitehybrid": Shape(_SPACE, _STORED_SPACE),
    "lfm2": Shape(_WIDE, _STORED_WIDE),
    "lfm2moe": Shape(
        {**_WIDE, "moe_intermediate_size": 32}, {**_STORED_WIDE, "expert_feed_forward_length": 32}
    ),
    "qwen35": Shape(
        {
            **_WIDE, "head_dim": 16, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
            "rope_parameters": {
                **FAMILIES["qwen35"].options["rope_parameters"], "mrope_section": [2, 1, 1],
            },
        },
        {
            **_STORED_WIDE, **_STORED_HEADS, "ssm.state_size": 16, "ssm.inner_size": 64,
            "rope.dimension_count": 8, "rope.dimension_sections": [2, 1, 1, 0],
        },
    ),
}  # fmt: skip
PROMPTS = tuple(
    tuple((i * i + 3 * i + length) % 8 for i in range(length)) for length in (3, 17, 40)
)
NEW_TOKENS = 16
TIE = 0.1
"""Beside a spread of 1. One token of these falls short by 0.04, the others by nothing: they are
what ``generate`` gives."""


@torch.inference_mode()
def find_shortfall(model: Any, prompt: tuple[int, ...], token_ids: list[int]) -> float:
    """By how much the worst of ``token_ids`` falls short of the likeliest, beside the spread of
    logits."""
    logits = model(torch.tensor([[*prompt, *token_ids]])).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(token_ids)[:, None])
    return float((logits.amax(-1, keepdim=True) - chosen).max() / logits.std())


@pytest.mark.represented_by("lfm2")
@pytest.mark.parametrize("name", stand_for_all(list(SHAPES)[::2], SHAPES))
def test_tokens_are_the_likeliest_of_the_stored_weights(tmp_path: Path, name: str) -> None:
    shape, family = SHAPES[name], FAMILIES[name]
    model = make_model(family._replace(options={**family.options, **shape.options}), tied=True)
    source = write_family(
        tmp_path / "a.gguf", name, model, shape.metadata, GGMLQuantizationType.Q8_0
    )
    gguf_checkpoint.convert(source, tmp_path / "exact", "float32")
    exact = AutoModelForCausalLM.from_pretrained(tmp_path / "exact").eval()
    gguf_checkpoint.describe(source, tmp_path / "described", "bfloat16", str(source))
    config = EngineConfig(
        device="cpu", dtype="bfloat16", max_num_seqs=4, max_num_batched_tokens=24,
        block_size=16, kv_cache_bytes=2**22,
    )  # fmt: skip
    engine = build_engine(tmp_path / "described", config)
    assert engine.forward == "c"
    params = SamplingParams(max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True)
    requests = [Request((p,), params, request_id=str(i)) for i, p in enumerate(PROMPTS)]
    completions = engine.generate(requests)
    engine.stop()
    texts = [completion.choices[0].token_ids for completion in completions]
    assert [len(text) for text in texts] == [NEW_TOKENS] * len(PROMPTS)
    assert len(set(chain(*texts))) > 3
    for prompt, text in zip(PROMPTS, texts, strict=True):
        assert find_shortfall(exact, prompt, text) < TIE
