"""Every format is read as the numbers that it stands for, and what is unknown is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from completions.contract.sampling import SamplingParams
from tests.workers.engine import greedy
from tests.workers.engine.checkpoints.quantized import packing
from tests.workers.engine.checkpoints.quantized.packing import Pack
from tests.workers.engine.tiny_models import LLAMA, save_model
from workers.engine.build import build_engine
from workers.engine.checkpoints.reading import checkpoint
from workers.engine.checkpoints.reading.checkpoint import read_model
from workers.engine.config import EngineConfig
from workers.engine.core.request import Request
from workers.engine.exceptions import UnsupportedModel

MODEL = {**LLAMA, "intermediate_size": 128}
"""Widths of 64 and 128, which groups of 32 divide and blocks of 48 do not."""


def compressed(form: str, **rule: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"strategy": "group", **rule}}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
    }


GPTQ = {"quant_method": "gptq", "group_size": 32}
AUTO = {"quant_method": "auto-round", "group_size": 32, "sym": False, "data_type": "int"}
BNB = {"quant_method": "bitsandbytes"}
FORMATS: dict[str, tuple[dict[str, Any], Pack]] = {
    "fp8, one scale": ({"quant_method": "fp8"}, packing.fp8(None, None, "weight_scale_inv")),
    "fp8, blocks": (
        {"quant_method": "fp8", "weight_block_size": [48, 48]},
        packing.fp8(48, 48, "weight_scale_inv"),
    ),
    "fp8, blocks with powers of two": (
        {"quant_method": "fp8", "weight_block_size": [32, 32]},
        packing.fp8(32, 32, "weight_scale_inv", torch.float8_e8m0fnu),
    ),
    "fbgemm_fp8": ({"quant_method": "fbgemm_fp8"}, packing.fp8(1, None, "weight_scale")),
    "modelopt": (
        {"quant_method": "modelopt", "quant_algo": "FP8"},
        packing.fp8(None, None, "weight_scale"),
    ),
    "modelopt fp8 by row": (
        {"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"},
        packing.fp8(1, None, "weight_scale"),
    ),
    "modelopt fp8 by block": (
        {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"},
        packing.modelopt_blocks,
    ),
    "modelopt nvfp4": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16},
        packing.modelopt_nvfp4,
    ),
    "modelopt mixed": (
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {
                "a": {"quant_algo": "FP8"},
                "b": {"quant_algo": "NVFP4", "group_size": 16},
            },
        },
        packing.modelopt_mixed,
    ),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, packing.awq),
    "gptq 2": (GPTQ | {"bits": 2}, packing.gptq(2)),
    "gptq 3": (GPTQ | {"bits": 3}, packing.gptq(3)),
    "gptq 4": (GPTQ | {"bits": 4}, packing.gptq(4)),
    "gptq 4, act order": (GPTQ | {"bits": 4, "desc_act": True}, packing.gptq(4, shuffled=True)),
    "gptq 4, v2": (GPTQ | {"bits": 4, "checkpoint_format": "gptq_v2"}, packing.gptq(4, less=0)),
    "gptq 4, v2 as transformers 5 names it": (
        GPTQ | {"bits": 4, "format": "gptq_v2"},
        packing.gptq(4, less=0),
    ),
    "gptq 4, both names": (
        GPTQ | {"bits": 4, "checkpoint_format": "gptq", "format": "gptq_v2"},
        packing.gptq(4),
    ),
    "autoround 4": (
        AUTO | {"bits": 4, "packing_format": "auto_round:auto_gptq"},
        packing.gptq(4),
    ),
    "autoround 4 of gptqmodel": (
        AUTO | {"bits": 4, "packing_format": "auto_round:gptqmodel"},
        packing.gptq(4, less=0),
    ),
    "autoround 4 of awq": (
        AUTO | {"bits": 4, "packing_format": "auto_round:auto_awq"},
        packing.awq,
    ),
    "gptq 8": (GPTQ | {"bits": 8}, packing.gptq(8)),
    "compressed int8": (
        compressed("int-quantized", num_bits=8, strategy="channel"),
        packing.int8(),
    ),
    "compressed int8, asymmetric groups": (
        compressed("int-quantized", num_bits=8, group_size=32),
        packing.int8(32, symmetric=False),
    ),
    "compressed fp8": (
        compressed("float-quantized", num_bits=8, strategy="channel"),
        packing.fp8(1, None, "weight_scale"),
    ),
    "compressed fp8, blocks": (
        compressed("float-quantized", num_bits=8, block_structure=[48, 48]),
        packing.fp8(48, 48, "weight_scale"),
    ),
    "compressed int4": (
        compressed("pack-quantized", num_bits=4, group_size=32),
        packing.words(4, 32),
    ),
    "compressed int4, asymmetric": (
        compressed("pack-quantized", num_bits=4, group_size=32),
        packing.words(4, 32, symmetric=False),
    ),
    "compressed int4, act order": (
        compressed("pack-quantized", num_bits=4, group_size=32, actorder="group"),
        packing.words(4, 32, symmetric=False, shuffled=True),
    ),
    "compressed int8 in words": (
        compressed("pack-quantized", num_bits=8, group_size=64),
        packing.words(8, 64),
    ),
    "compressed mxfp4": (compressed("mxfp4-pack-quantized", num_bits=4), packing.mxfp4),
    "compressed nvfp4": (compressed("nvfp4-pack-quantized", num_bits=4), packing.nvfp4),
    "bitsandbytes nf4": (BNB | {"load_in_4bit": True}, packing.bitsandbytes("nf4")),
    "bitsandbytes nf4, nested": (
        BNB | {"load_in_4bit": True},
        packing.bitsandbytes("nf4", nested=True),
    ),
    "bitsandbytes fp4": (BNB | {"load_in_4bit": True}, packing.bitsandbytes("fp4")),
    "bitsandbytes int8": (BNB | {"load_in_8bit": True}, packing.llm_int8),
}

CONFIG = EngineConfig(
    device="cpu",
    dtype="float32",
    max_num_seqs=4,
    max_num_batched_tokens=64,
    block_size=16,
    kv_cache_bytes=2**22,
)

Write = Callable[..., dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("plain"), MODEL)


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


def state_modelopt(folder: Path, settings: dict[str, Any]) -> None:
    """Write ModelOpt's own file instead of the setting in config.json."""
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    document = {"producer": {"name": "modelopt"}, "quantization": settings}
    (folder / "hf_quant_config.json").write_text(json.dumps(document))


def test_a_file_of_modelopt_that_is_cut_off_is_named(tmp_path: Path, plain: Path) -> None:
    packing.rewrite(plain, tmp_path, {}, packing.modelopt_nvfp4)
    state_modelopt(tmp_path, {"quant_algo": "NVFP4"})
    (tmp_path / "hf_quant_config.json").write_text('{"quantiz')
    with pytest.raises(UnsupportedModel, match=r"hf_quant_config\.json cannot be read"):
        read_model(tmp_path, torch.float32, "eager")


REFUSED = {
    "unknown": ({"quant_method": "unheard_of"}, "'unheard_of', which is unknown.*awq, bits"),
    "no method": ({"bits": 4}, "None, which is unknown"),
    "by transformers": ({"quant_method": "hqq"}, "(?i)quantized by 'hqq'.*hqq"),
    "awq version": (FORMATS["awq"][0] | {"version": "gemv"}, "only 'gemm' can be read, not 'gemv'"),
    "awq bits": (FORMATS["awq"][0] | {"bits": 3}, "AWQ has 4 bits, not 3"),
    "gptq bits": (GPTQ | {"bits": 5}, "2, 3, 4 or 8 bits, not 5"),
    "gptq layout": (GPTQ | {"bits": 4, "checkpoint_format": "marlin"}, "not 'marlin'"),
    "compressed format": (compressed("marlin-24"), "its format 'marlin-24' is none of"),
    "compressed bits": (
        compressed("pack-quantized", num_bits=7, group_size=32),
        "pack-quantized has 4 or 8 bits, not 7",
    ),
    "sparse": (
        compressed("int-quantized") | {"sparsity_config": {"format": "sparse-bitmask"}},
        "sparse weights",
    ),
    "rotated": (compressed("int-quantized") | {"transform_config": {"x": {}}}, "rotated weights"),
    "gptq format": (GPTQ | {"bits": 4, "format": "marlin"}, "not 'marlin'. Serve the checkpoint"),
    "autoround packing": (AUTO | {"bits": 4, "packing_format": "auto_round:fp8"}, "_round:fp8' is"),
    "modelopt": (
        {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"},
        "'W4A8_AWQ' is none of FP8, .*NVFP4. Serve the checkpoint in 16 bits",
    ),
    "modelopt, one layer": (
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {"a": {"quant_algo": "FP8"}, "b": {"quant_algo": "INT4_AWQ"}},
        },
        "'INT4_AWQ' is none of",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore")  # of transformers, on the packages that it would need
def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path, plain: Path, name: str) -> None:
    settings, reason = REFUSED[name]
    packing.rewrite(plain, tmp_path, settings, packing.awq)
    with pytest.raises(UnsupportedModel, match=reason):
        read_model(tmp_path, torch.float32, "eager")


def refused(path: Path, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged file is refused at once: it is not read again without the engine's attention."""
    caplog.set_level("INFO")
    with pytest.raises(UnsupportedModel, match=reason):
        read_model(path, torch.float32, "eager")
    assert "attention function" not in caplog.text


def test_parts_that_do_not_fit_are_named(
    tmp_path: Path, plain: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings, pack = FORMATS["fp8, blocks"]
    packing.rewrite(plain, tmp_path, settings | {"weight_block_size": [32, 32]}, pack)
    refused(tmp_path, r"_proj\.weight of _scale_inv \[2, 3\].*3 scales do not fit", caplog)


def test_scales_that_no_format_explains_are_refused(
    tmp_path: Path, plain: Path, caplog: pytest.LogCaptureFixture
) -> None:
    packing.rewrite(plain, tmp_path, *FORMATS["compressed int8"])
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)
    tensors["model.layers.0.mlp.up_proj.weight_second_scale"] = torch.ones(1)
    save_file(tensors, weights, {"format": "pt"})
    refused(tmp_path, r"up_proj\.weight_second_scale, which no module of Llama.* takes", caplog)


def test_biases_of_zeros_that_a_quantizer_added_are_left_alone(
    tmp_path: Path, plain: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """AutoGPTQ wrote one for each layer, whether the model has biases or not."""
    packing.rewrite(plain, tmp_path, *FORMATS["gptq 4"])
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)
    name = "model.layers.0.mlp.up_proj.bias"
    bias = torch.zeros(tensors["model.layers.0.mlp.up_proj.scales"].shape[1])
    save_file({**tensors, name: bias}, weights, {"format": "pt"})
    read_model(tmp_path, torch.float32, "eager")
    bias[3] = 1
    save_file({**tensors, name: bias}, weights, {"format": "pt"})
    refused(tmp_path, rf"{name}, which no module of Llama.* takes", caplog)


@pytest.mark.parametrize(
    ("name", "suffix"), [("fp8, blocks", "_scale_inv"), ("compressed int8", "_scale")]
)
def test_a_weight_without_its_scales_is_refused(
    tmp_path: Path, plain: Path, name: str, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    packing.rewrite(plain, tmp_path, *FORMATS[name])
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)
    del tensors[f"model.layers.1.mlp.up_proj.weight{suffix}"]
    save_file(tensors, weights, {"format": "pt"})
    refused(tmp_path, r"1\.mlp\.up_proj\.weight is stored as .* without", caplog)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_experts_in_one_tensor_without_their_scales_are_refused(
    tmp_path: Path, dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    options = {**MODEL, "model_type": "gpt_oss", "num_local_experts": 4, "head_dim": 16}
    save_model(tmp_path, {**options, "num_experts_per_tok": 2, "rope_parameters": None})
    weights, name = tmp_path / "model.safetensors", "model.layers.1.mlp.experts.down_proj"
    tensors = load_file(weights)
    step = tensors[name].abs().max() / 100
    scale = {f"{name}_scale_inv": step.reshape(())}
    tensors[name] = (tensors[name] / step).to(dtype)
    save_file(tensors | scale, weights, {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    read = read_model(tmp_path, torch.float32, "eager").state_dict()
    torch.testing.assert_close(read[name], tensors[name].float() * step)
    save_file(tensors, weights, {"format": "pt"})
    refused(tmp_path, r"1\.mlp\.experts\.down_proj is stored as .* without", caplog)


def test_rows_of_bytes_in_another_order_are_refused(
    tmp_path: Path, plain: Path, caplog: pytest.LogCaptureFixture
) -> None:
    packing.rewrite(plain, tmp_path, *FORMATS["bitsandbytes int8"])
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)
    tensors["model.layers.0.mlp.up_proj.weight_format"] = torch.tensor(2, dtype=torch.uint8)
    save_file(tensors, weights, {"format": "pt"})
    refused(tmp_path, r"0\.mlp\.up_proj\.weight of .*weight_format is 2", caplog)


def test_files_that_transformers_does_not_read_are_left_alone(tmp_path: Path, plain: Path) -> None:
    packing.rewrite(plain, tmp_path, *FORMATS["awq"])
    weights = tmp_path / "model.safetensors"
    extra = {"visual.blocks.0.mlp.weight": torch.ones(2)}
    save_file(load_file(weights) | extra, weights, {"format": "pt"})
    save_file({"layers.0.qscale": torch.ones(1)}, tmp_path / "consolidated.safetensors")
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
