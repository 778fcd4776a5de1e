import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from completions.contract.sampling import SamplingParams
from tests.workers.engine import greedy
from tests.workers.engine.adapters import merge, save_adapter
from tests.workers.engine.tiny_models import LLAMA, save_model
from workers.engine.backends.base.lora import Adapters
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.core.request import Request
from workers.engine.engine import Engine
from workers.engine.exceptions import InvalidRequest, UnsupportedAdapter

PARAMS = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
LAYERS = ("q_proj", "v_proj", "down_proj")


def config(**settings: Any) -> EngineConfig:
    small = {"max_num_seqs": 8, "max_num_batched_tokens": 24, "block_size": 4}
    return EngineConfig(**{"dtype": "float32", "kv_cache_bytes": 2**22, **small, **settings})


@pytest.fixture(scope="module")
def folders(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two adapters of different rank, scaling and layers."""
    root = tmp_path_factory.mktemp("adapters")
    return {
        "plain": save_adapter(root / "plain", tiny_llama, rank=4, seed=1),
        "stable": save_adapter(
            root / "stable", tiny_llama, rank=9, seed=2, lora_alpha=6, use_rslora=True,
            rank_pattern={"q_proj": 9}, alpha_pattern={"layers.0.self_attn.v_proj|v_proj": 3},
        ),
    }  # fmt: skip


@pytest.fixture(scope="module")
def merged(
    tiny_llama: Path, folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str | None, Path]:
    root = tmp_path_factory.mktemp("merged")
    plain = dict.fromkeys(LAYERS, 8 / 4)
    stable = {"q_proj": 6 / 3, "v_proj": 3 / 3, "down_proj": 6 / 3}
    return {
        None: tiny_llama,
        "plain": merge(tiny_llama, folders["plain"], plain, root / "plain"),
        "stable": merge(tiny_llama, folders["stable"], stable, root / "stable"),
    }


@pytest.fixture(scope="module")
def engine(tiny_llama: Path, folders: dict[str, Path]) -> Engine:
    return build_engine(tiny_llama, config(adapters=folders))


@pytest.mark.parametrize("adapter", [None, "plain", "stable"])
def test_an_adapter_equals_the_merged_weights(
    engine: Engine, merged: dict[str | None, Path], adapter: str | None
) -> None:
    prompt = greedy.prompt(30)
    [completion] = engine.generate(
        [Request((prompt,), PARAMS, adapters=(adapter,), request_id="r")]
    )
    expected = greedy.generate(merged[adapter], prompt, 12)
    assert completion.choices[0].token_ids[: len(expected)] == expected
    others = {tuple(greedy.generate(path, prompt, 12)) for path in merged.values()}
    assert len(others) == 3, "the adapters must make a difference"


def test_different_adapters_share_a_batch(engine: Engine, merged: dict[str | None, Path]) -> None:
    adapters = [None, "plain", "stable", "plain", None, "stable", "plain"]
    prompts = [greedy.prompt(3 + 6 * i, salt=i) for i in range(len(adapters))]
    requests = [
        Request((prompt,), PARAMS, adapters=(adapter,), request_id=str(i))
        for i, (prompt, adapter) in enumerate(zip(prompts, adapters, strict=True))
    ]
    for completion, prompt, adapter in zip(
        engine.generate(requests), prompts, adapters, strict=True
    ):
        expected = greedy.generate(merged[adapter], prompt, 12)
        assert completion.choices[0].token_ids[: len(expected)] == expected


def test_packed_layers_are_adapted_too(tmp_path: Path) -> None:
    base = save_model(tmp_path / "base", {**LLAMA, "initializer_range": 0.02})
    folder = save_adapter(tmp_path / "adapter", base)
    merged = merge(base, folder, dict.fromkeys(LAYERS, 2.0), tmp_path / "merged")
    prompt = greedy.prompt(20)
    with_adapter = build_engine(base, config(dtype="bfloat16", adapters={"a": folder}))
    whole = build_engine(merged, config(dtype="bfloat16"))
    logits = [
        _first_logits(whole, Request((prompt,), PARAMS, request_id="r")),
        _first_logits(with_adapter, Request((prompt,), PARAMS, adapters=("a",), request_id="r")),
        _first_logits(with_adapter, Request((prompt,), PARAMS, request_id="r")),
    ]
    error, difference = ((logits[0] - other).norm() / logits[0].norm() for other in logits[1:])
    assert error < 0.03
    assert difference > 0.3


def _first_logits(engine: Engine, request: Request) -> torch.Tensor:
    engine.submit(request)
    engine.receive(wait=False)
    scheduled = engine.scheduler.schedule()
    with torch.inference_mode():
        logits = engine.runner.forward(engine.runner.prepare(scheduled)).float().clone()
    engine.abort(request.request_id)
    engine.receive(wait=False)
    return logits


def test_an_unknown_adapter_is_refused_with_the_known(engine: Engine, tiny_llama: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"'other' does not exist.*: plain, stable"):
        engine.submit(Request(((5,),), PARAMS, adapters=("other",), request_id="r"))
    plain = build_engine(tiny_llama, config())
    with pytest.raises(InvalidRequest, match="the model has: none"):
        plain.submit(Request(((5,),), PARAMS, adapters=("other",), request_id="r"))


def test_prompts_of_one_request_may_have_different_adapters(
    engine: Engine, merged: dict[str | None, Path]
) -> None:
    prompts = tuple(greedy.prompt(length) for length in (9, 17, 4))
    adapters = ("plain", None, "stable")
    [completion] = engine.generate([Request(prompts, PARAMS, adapters=adapters, request_id="r")])
    for choice, prompt, adapter in zip(completion.choices, prompts, adapters, strict=True):
        expected = greedy.generate(merged[adapter], prompt, 12)
        assert choice.token_ids[: len(expected)] == expected
    with pytest.raises(InvalidRequest, match="for every prompt"):
        engine.submit(Request(prompts, PARAMS, adapters=("plain",), request_id="r"))


def test_without_adapters_layers_have_no_hooks(tiny_llama: Path) -> None:
    engine = build_engine(tiny_llama, config())
    modules = engine.runner._model.model.modules()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in modules)


@pytest.mark.represented_by("settings0-peft_type 'IA3'")
@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias 'all'"),
        ({"lora_bias": True}, "lora_bias"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"target_parameters": ["experts"]}, "target_parameters"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"invented_later": True}, "invented_later"),
        ({"init_lora_weights": "pissa"}, "pissa"),
    ],
)
def test_other_features_are_refused_by_name(
    tiny_llama: Path, tmp_path: Path, settings: dict[str, Any], complaint: str
) -> None:
    folder = save_adapter(tmp_path, tiny_llama, **settings)
    with pytest.raises(UnsupportedAdapter, match=f"adapter 'a' in .*{complaint}"):
        build_engine(tiny_llama, config(adapters={"a": folder}))


EMBEDDING = "base_model.model.model.embed_tokens.lora_embedding_A"
Q_PROJ = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.mark.represented_by("tensors0-lora_embedding_A is not a LoRA weight")
@pytest.mark.parametrize(
    ("tensors", "complaint"),
    [
        ({EMBEDDING: torch.zeros(4, 400)}, "lora_embedding_A is not a LoRA weight"),
        ({f"{Q_PROJ}.lora_magnitude_vector": torch.zeros(64)}, "lora_magnitude_vector"),
        ({f"{Q_PROJ}.lora_A.weight": torch.zeros(3, 64)}, "ranks 3 and 4"),
        ({f"{Q_PROJ}.lora_A.weight": torch.zeros(4, 65)}, "65 to 64 features"),
        ({f"{Q_PROJ.replace('0', '7')}.lora_A.weight": torch.zeros(4, 64)}, "lora_A only"),
        (
            {
                f"base_model.model.lm_head.lora_{part}.weight": torch.zeros(shape)
                for part, shape in (("A", (4, 64)), ("B", (400, 4)))
            },
            "output layer",
        ),
        (
            {
                f"base_model.model.model.norm.lora_{part}.weight": torch.zeros(4, 4)
                for part in ("A", "B")
            },
            "is a LlamaRMSNorm",
        ),
        (
            {f"base_model.model.head.lora_{part}.weight": torch.zeros(4, 4) for part in ("A", "B")},
            "no layer head",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(
    tiny_llama: Path, tmp_path: Path, tensors: dict[str, torch.Tensor], complaint: str
) -> None:
    folder = save_adapter(tmp_path, tiny_llama)
    path = folder / "adapter_model.safetensors"
    save_file({**load_file(path), **tensors}, path)
    with pytest.raises(UnsupportedAdapter, match=complaint):
        build_engine(tiny_llama, config(adapters={"a": folder}))


def test_a_missing_folder_or_file_is_named(tiny_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedAdapter, match=r"adapter 'a' in .*nowhere: cannot be read"):
        build_engine(tiny_llama, config(adapters={"a": tmp_path / "nowhere"}))
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(UnsupportedAdapter, match="cannot be read"):
        build_engine(tiny_llama, config(adapters={"a": tmp_path}))


def test_layers_that_do_not_see_the_whole_batch_are_refused(
    tiny_llama: Path, folders: dict[str, Path]
) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_llama)
    adapters = Adapters.load(model, {"plain": folders["plain"]})
    layer = model.model.layers[0]
    with adapters.checking(3):
        model(input_ids=torch.tensor([[5, 6, 7]]))
    with pytest.raises(UnsupportedAdapter, match="every token"), adapters.checking(3):
        layer.mlp(torch.zeros(1, 2, 64))
