"""Every format is read as the numbers that it stands for."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from completions.contract.sampling import SamplingParams
from tests.workers.engine import greedy
from tests.workers.engine.checkpoints.quantized import packing
from tests.workers.engine.checkpoints.quantized.packing import Pack
from tests.workers.engine.checkpoints.quantized.stored_formats import FORMATS, MODEL, state_modelopt
from tests.workers.engine.tiny_models import save_model
from workers.engine.build import build_engine
from workers.engine.checkpoints.reading import checkpoint
from workers.engine.checkpoints.reading.checkpoint import read_model
from workers.engine.config import EngineConfig
from workers.engine.core.request import Request
from workers.engine.exceptions import UnsupportedModel

CONFIG = EngineConfig(
    device="cpu",
    dtype="float32",
    max_num_seqs=4,
    max_num_batched_tokens=64,
    block_size=16,
    kv_cache_bytes=2**22,
)

Write = Callable[..., dict[str, torch.Tensor]]


@pytest.mark.represented_by("fp8, one scale", "gptq 4, act order")
@pytest.mark.parametrize("name", FORMATS)
def test_weights_are_what_their_parts_stand_for(tmp_path: Path, plain: Path, name: str) -> None:
    meant = packing.rewrite(plain, tmp_path, *FORMATS[name])
    read = read_model(tmp_path, torch.float32, "eager").state_dict()
    assert read.keys() == meant.keys()
    for each, values in meant.items():
        torch.testing.assert_close(read[each], values, rtol=1e-6, atol=0, msg=f"{name}: {each}")
    # A packer and a reader that share a mistake would agree with each other, not with these.
    bits = 2 if "gptq 2" in name else 3 if "gptq 3" in name else 8 if "8" in name else 4
    original = load_file(plain / "model.safetensors")["model.layers.1.mlp.down_proj.weight"]
    error = read["model.layers.1.mlp.down_proj.weight"] - original
    assert error.norm() / original.norm() < {2: 0.5, 3: 0.2, 4: 0.15, 8: 0.05}[bits]


@pytest.mark.parametrize("name", ["fp8, blocks", pytest.param("awq", marks=pytest.mark.long)])
def test_an_engine_says_what_the_dequantized_model_says(
    tmp_path: Path, plain: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    packed, wide = tmp_path / "packed", tmp_path / "wide"
    packed.mkdir()
    meant = packing.rewrite(plain, packed, *FORMATS[name])
    save_model(wide, MODEL)
    save_file(meant, wide / "model.safetensors", {"format": "pt"})
    engine = build_engine(packed, CONFIG)
    prompts = [greedy.prompt(length, salt=length) for length in (3, 30)]
    params = SamplingParams(max_tokens=12, temperature=0)
    done = engine.generate(
        [Request((p,), params, request_id=str(i)) for i, p in enumerate(prompts)]
    )
    for prompt, completion in zip(prompts, done, strict=True):
        assert completion.choices[0].token_ids == greedy.generate(wide, prompt, 12)
    method = FORMATS[name][0]["quant_method"]
    assert f"the weights, stored as {method}, take 0.00 GiB of memory in float32" in caplog.text


def test_the_experts_of_gpt_oss_are_read(tmp_path: Path) -> None:
    options = {
        **MODEL, "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2,
        "head_dim": 16, "rope_parameters": None, "sliding_window": 7,
    }  # fmt: skip
    source, target = tmp_path / "source", tmp_path / "target"
    target.mkdir()
    save_model(source, options)

    def pack(weight: torch.Tensor) -> packing.Packed:
        packed = packing.mxfp4(weight.transpose(1, 2).contiguous())
        blocks = packed.parts["weight_packed"].unflatten(-1, (-1, 16))
        parts = {"_blocks": blocks, "_scales": packed.parts["weight_scale"]}
        return packing.Packed(parts, packed.values.transpose(1, 2))

    meant: dict[str, torch.Tensor] = {}
    for part in ("gate_up_proj", "down_proj"):  # one after the other
        meant = packing.rewrite(source, target, {"quant_method": "mxfp4"}, pack, part)
        source = target
    read = read_model(target, torch.float32, "eager").state_dict()
    for name in read:
        if name.endswith("down_proj"):
            assert torch.equal(read[name], meant[name])
        elif name.endswith("gate_up_proj"):
            original = load_file(tmp_path / "source" / "model.safetensors")[name]
            assert torch.equal(read[name], pack(original).values)


def test_experts_that_are_stored_one_by_one_are_read(tmp_path: Path) -> None:
    options = {
        **MODEL, "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "head_dim": 16,
    }  # fmt: skip
    source, target, wide = tmp_path / "source", tmp_path / "target", tmp_path / "wide"
    target.mkdir()
    save_model(source, options)
    meant = packing.rewrite(source, target, *FORMATS["fp8, blocks"])
    assert any(".experts.3.down_proj." in name for name in meant)
    save_model(wide, options)
    save_file(meant, wide / "model.safetensors", {"format": "pt"})
    read, expected = (read_model(path, torch.float32, "eager") for path in (target, wide))
    for name, values in expected.state_dict().items():
        torch.testing.assert_close(read.state_dict()[name], values, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("algorithm", "pack"),
    [("FP8", packing.fp8(None, None, "weight_scale")), ("NVFP4", packing.modelopt_nvfp4)],
)
def test_the_file_of_older_modelopt_versions_is_read(
    tmp_path: Path, plain: Path, algorithm: str, pack: Pack
) -> None:
    meant = packing.rewrite(plain, tmp_path, {}, pack)
    state_modelopt(tmp_path, {"quant_algo": algorithm, "kv_cache_quant_algo": "FP8"})
    read = read_model(tmp_path, torch.float32, "eager").state_dict()
    for each, values in meant.items():
        torch.testing.assert_close(read[each], values, rtol=1e-6, atol=0, msg=each)


def test_a_quantized_kv_cache_leaves_weights_as_they_are(tmp_path: Path, plain: Path) -> None:
    packing.rewrite(plain, tmp_path, {}, packing.awq, part="nothing")
    weights = tmp_path / "model.safetensors"
    scale = {"model.layers.0.self_attn.k_proj.k_scale": torch.ones(1)}
    save_file(load_file(weights) | scale, weights, {"format": "pt"})
    state_modelopt(tmp_path, {"quant_algo": None, "kv_cache_quant_algo": "FP8"})
    assert read_model(tmp_path, torch.float32, "eager").dtype == torch.float32


def test_a_checkpoint_in_several_files_is_read_whole(tmp_path: Path, plain: Path) -> None:
    meant = packing.rewrite(plain, tmp_path, *FORMATS["gptq 4"])
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    index = {}
    for i in range(2):  # the parts of a weight may lie in different files
        part = dict(list(tensors.items())[i::2])
        save_file(part, tmp_path / f"part-{i}.safetensors", {"format": "pt"})
        index |= dict.fromkeys(part, f"part-{i}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    read = read_model(tmp_path, torch.float32, "eager").state_dict()
    name = "model.layers.1.mlp.down_proj.weight"
    torch.testing.assert_close(read[name], meant[name], rtol=1e-6, atol=0)


def test_a_model_that_does_not_fit_is_refused_with_both_figures(
    tmp_path: Path, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packing.rewrite(plain, tmp_path, *FORMATS["awq"])
    monkeypatch.setattr(checkpoint, "available_memory", lambda: 1000)
    with pytest.raises(
        UnsupportedModel, match=r"stored as awq, take 0\.00 GiB .* 0\.00 GiB are free"
    ):
        read_model(tmp_path, torch.float32, "eager")


def test_what_is_not_quantized_has_no_format(plain: Path) -> None:
    config = json.loads((plain / "config.json").read_text())
    assert "quantization_config" not in config
    assert read_model(plain, torch.float32, "eager").dtype == torch.float32
