"""What cannot be read of a quantized checkpoint is refused by name, before any weight is used."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.workers.engine.checkpoints.quantized import packing
from tests.workers.engine.checkpoints.quantized.stored_formats import (
    AUTO,
    FORMATS,
    GPTQ,
    MODEL,
    compressed,
    state_modelopt,
)
from tests.workers.engine.tiny_models import save_model
from workers.engine.checkpoints.reading.checkpoint import read_model
from workers.engine.exceptions import UnsupportedModel


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
