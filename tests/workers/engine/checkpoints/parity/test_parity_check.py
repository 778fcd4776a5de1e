"""What a miniature model shows of windows, trained lengths and positions."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.representatives import stand_for_all
from tests.workers.engine.tiny_models import LLAMA, save_model
from workers.engine.backends.cpu.layers.library import load_library
from workers.engine.backends.cpu.recognition import decoders, layers
from workers.engine.backends.cpu.recognition.rotary import Angles
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.core.layer_shape import Visible

SHAPE = {
    **LLAMA, "hidden_size": 128, "intermediate_size": 128, "head_dim": 64, "vocab_size": 416,
    "initializer_range": 0.1,
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
TUNED = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "llama_4_scaling_beta": 0.5,
    "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip
GLOBAL = {"num_hidden_layers": 4, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}
EXAONE_MOE = {
    "model_type": "exaone_moe", **GLOBAL, "mlp_layer_types": ["dense"] + ["sparse"] * 3,
    "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_group": 1,
    "topk_group": 1,
}  # fmt: skip


def forward(path: Path, **settings: Any) -> str:
    config = {"device": "cpu", "dtype": "float32", "kv_cache_bytes": 2**22, **settings}
    return build_engine(path, EngineConfig(**config)).forward


def test_what_changes_with_a_sequences_length_counts_if_sequences_grow_so_long(
    tmp_path: Path,
) -> None:
    options = {**LLAMA, "rope_parameters": DYNAMIC, "max_position_embeddings": 32}
    path = save_model(tmp_path, options)
    assert forward(path, max_model_len=32) == "torch"
    assert forward(path, max_model_len=33) == "general"


@pytest.mark.represented_by("llama")
@pytest.mark.skipif(load_library() is None, reason="this machine has no C forward")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "c"),
        ({"model_type": "mistral", "sliding_window": 40}, "c"),
        ({"model_type": "ministral3", "rope_parameters": TUNED}, "c"),
        ({"model_type": "smollm3", "num_hidden_layers": 8, "no_rope_layers": [1] * 7 + [0]},
         "c"),
        ({"model_type": "ernie4_5_moe", "moe_num_experts": 8, "moe_k": 2,
          "moe_intermediate_size": 64}, "c"),
        (EXAONE_MOE, "c"),
        ({"model_type": "cohere2", **GLOBAL}, "c"),
        ({"model_type": "exaone4", **GLOBAL}, "c"),
    ],
    ids=["llama", "mistral", "queries scaled by position", "one layer without positions",
         "probabilities of experts corrected", "global layers of a mixture without positions",
         "global layers of Cohere 2", "global layers of EXAONE 4"],
)  # fmt: skip
def test_the_c_forward_computes_what_it_knows(
    tmp_path: Path, options: dict[str, Any], expected: str
) -> None:
    path = save_model(tmp_path, {**SHAPE, **options})
    assert forward(path, dtype="bfloat16") == expected


def test_the_draw_of_a_miniature_leaves_others_alone(tiny_llama: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    forward(tiny_llama)
    assert torch.equal(torch.rand(4), expected)


def _rotate_all(patch: pytest.MonkeyPatch) -> None:
    def read(rotary: Any, max_len: int, _positionless: Any) -> Angles:
        return Angles(rotary, max_len, ())

    patch.setattr(decoders, "Angles", read)


def _change_rules(patch: pytest.MonkeyPatch, **changes: Any) -> None:
    patch.setattr(layers, "_whole_rule", lambda rule, _: replace(rule, **changes))


FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "rotates the keys of global layers": _rotate_all,
    "sees beyond the window": lambda patch: _change_rules(patch, visible=Visible()),
    "scales scores": lambda patch: _change_rules(patch, scale=0.18),
    "caps scores": lambda patch: _change_rules(patch, softcap=2.0),
}


@pytest.mark.wide
@pytest.mark.skipif(load_library() is None, reason="this machine has no C forward")
@pytest.mark.parametrize("fault", stand_for_all(["sees beyond the window", "caps scores"], FAULTS))
def test_the_noise_of_a_mixtures_routers_hides_no_fault(
    tmp_path: Path,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = save_model(tmp_path, {**SHAPE, **EXAONE_MOE, "sliding_window": 8})
    FAULTS[fault](monkeypatch)
    caplog.set_level("INFO")
    assert forward(path, dtype="bfloat16") == "torch"
    assert "in C differs from generate" in caplog.text
