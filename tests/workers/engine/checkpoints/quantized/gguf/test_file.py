"""GGUF files are read as the models that were stored, block by block."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize

from tests.workers.engine.checkpoints.quantized.gguf import small_files
from tests.workers.engine.checkpoints.quantized.gguf.small_files import (
    SIZES,
    WORDS,
    tiny_model,
    write_gguf,
)
from workers.engine.checkpoints.quantized.gguf import reader
from workers.engine.checkpoints.reading.checkpoint import read_model
from workers.engine.exceptions import UnsupportedModel
from workers.preparation import gguf_checkpoint

ARCHITECTURES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, {}),
    "llama linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "llama yarn": (
        "llama",
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5000.0,
                             "original_max_position_embeddings": 16}},
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
         "rope.scaling.original_context_length": 16},
    ),
    "llama yarn, every setting": (
        "llama",
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5000.0,
                             "original_max_position_embeddings": 16, "attention_factor": 1.5,
                             "beta_fast": 16.0, "beta_slow": 2.0}},
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
         "rope.scaling.original_context_length": 16, "rope.scaling.yarn_attn_factor": 1.5,
         "rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_beta_slow": 2.0,
         "rope.scaling.yarn_ext_factor": 1.0},
    ),
    "llama yarn, by default": (
        "llama",
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5000.0,
                             "original_max_position_embeddings": 64}},
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0},
    ),
    "llama linear, by default": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}},
        {"rope.scaling.factor": 4.0},
    ),
    "llama linear, by the old name": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}},
        {"rope.scale_linear": 4.0},
    ),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}, {}),
    "qwen3 biases": ("qwen3", {"attention_bias": True}, {}),
    "qwen2": ("qwen2", {}, {}),
    "qwen3": ("qwen3", {}, {}),
    "qwen3moe": (
        "qwen3_moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
         "norm_topk_prob": True},
        {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 16},
    ),
    "llama mixtral": (
        "mixtral",
        {"num_local_experts": 4, "num_experts_per_tok": 2},
        {"expert_count": 4, "expert_used_count": 2},
    ),
    "gemma2": (
        "gemma2",
        {"sliding_window": 8, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 5.0,
         "final_logit_softcapping": 3.0},
        {"attention.sliding_window": 8, "attn_logit_softcapping": 5.0,
         "final_logit_softcapping": 3.0},
    ),
    "gemma3": (
        "gemma3_text",
        {"sliding_window": 8, "query_pre_attn_scalar": 8, "num_hidden_layers": 7,
         "rope_parameters": {
             "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
             "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
        {"attention.sliding_window": 8, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    ),
    "phi3": (
        "phi3",
        {"partial_rotary_factor": 0.5, "pad_token_id": 0},
        {"rope.dimension_count": 4},
    ),
}  # fmt: skip
Q = GGMLQuantizationType
WIDE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}


def describe(source: Path, target: Path) -> Path:
    gguf_checkpoint.describe(source, target, "float32", str(source))
    return target


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_model_is_the_one_that_was_stored(tmp_path: Path, name: str) -> None:
    model_type, options, metadata = ARCHITECTURES[name]
    model = tiny_model(model_type, **options)
    source = write_gguf(tmp_path / "a.gguf", name.split()[0], model, metadata=metadata)
    made = read_model(describe(source, tmp_path / "made"), torch.float32, "eager")
    assert type(made) is type(model)
    for each, values in model.state_dict().items():
        torch.testing.assert_close(made.state_dict()[each], values, rtol=0, atol=1e-6)
    tokens = torch.arange(40)[None] % len(WORDS)
    torch.testing.assert_close(made(tokens).logits, model.eval()(tokens).logits)


def test_the_positions_of_llama_3_are_read_from_their_factors(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3", "factor": 32.0, "rope_theta": 500000.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    }  # fmt: skip
    model = tiny_model("llama", head_dim=64, rope_parameters=rope, max_position_embeddings=131072)
    plain = rope["rope_theta"] ** (torch.arange(0, 64, 2) / -64)
    frequencies = plain / model.model.rotary_emb.inv_freq
    source = write_gguf(
        tmp_path / "a.gguf", "llama", model, metadata={"rope.freq_base": 500000.0},
        tensors={"rope_freqs.weight": frequencies},
    )  # fmt: skip
    made = read_model(describe(source, tmp_path / "made"), torch.float32, "eager")
    inverse = made.model.rotary_emb.inv_freq
    torch.testing.assert_close(inverse, model.model.rotary_emb.inv_freq, rtol=1e-5, atol=0)
    assert made.config.rope_parameters == rope


def test_factors_of_positions_that_are_none_of_llama_3_are_refused(tmp_path: Path) -> None:
    source = write_gguf(
        tmp_path / "a.gguf", "llama", tiny_model("llama"),
        tensors={"rope_freqs.weight": torch.tensor([1.0, 2, 3, 4])},
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"rope_freqs\.weight are not the factors of Llama 3"):
        describe(source, tmp_path / "made")


@pytest.mark.parametrize(
    "kind", [Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q4_K, Q.Q6_K, Q.F16, Q.BF16]
)
def test_blocks_are_read_as_what_they_stand_for(tmp_path: Path, kind: Q) -> None:
    model = tiny_model("qwen3", **WIDE)
    source = write_gguf(tmp_path / "a.gguf", "qwen3", model, kind=kind)
    folder = describe(source, tmp_path / "made")
    settings = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert settings == {"quant_method": "gguf", "file": str(source), "type": kind.name}
    made = read_model(folder, torch.float32, "eager").state_dict()
    for name, values in model.state_dict().items():
        if values.dim() < 2:
            assert torch.equal(made[name], values)
            continue
        if kind in small_files.OF_256:
            meant = small_files.OF_256[kind](values.numpy())[1]
        else:
            meant = dequantize(quantize(values.numpy(), kind), kind)
        torch.testing.assert_close(made[name], torch.from_numpy(meant), rtol=1e-6, atol=1e-7)
        error = float(np.linalg.norm(meant - values.numpy()) / values.norm())
        assert error < (0.1 if "4" in kind.name else 0.05)


@pytest.mark.parametrize(
    ("file_type", "expected"),
    [(15, "Q4_K_M"), (0, "F32"), (32, "BF16"), (1024, "Q8_0"), (99, "Q8_0"), (None, "Q8_0")],
)
def test_the_quantization_has_the_name_that_the_file_states(
    tmp_path: Path, file_type: int | None, expected: str
) -> None:
    source = write_gguf(
        tmp_path / "a.gguf", "qwen3", tiny_model("qwen3", **WIDE), kind=Q.Q8_0, file_type=file_type
    )
    config = json.loads((describe(source, tmp_path / "made") / "config.json").read_text())
    assert config["quantization_config"]["type"] == expected


def test_matrices_are_rounded_as_they_are_read(tmp_path: Path) -> None:
    """Norms are rounded after 1 is subtracted."""
    model_type, options, metadata = ARCHITECTURES["gemma2"]
    model = tiny_model(model_type, **options)
    source = write_gguf(tmp_path / "a.gguf", "gemma2", model, metadata=metadata)
    made = read_model(describe(source, tmp_path / "made"), torch.bfloat16, "eager").state_dict()
    for name, values in model.state_dict().items():
        stored = (values + 1) - 1 if name.endswith("norm.weight") else values
        assert torch.equal(made[name], stored.bfloat16()), name


def test_rows_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_gguf(tmp_path / "a.gguf", "qwen3", tiny_model("qwen3", **WIDE), kind=Q.Q4_K)
    folder = describe(source, tmp_path / "made")
    whole = read_model(folder, torch.float32, "eager").state_dict()
    monkeypatch.setattr(reader, "_VALUES_AT_ONCE", 1000)
    pieces = read_model(folder, torch.float32, "eager").state_dict()
    assert all(torch.equal(pieces[name], values) for name, values in whole.items())


def split(folder: Path) -> tuple[list[Path], Any]:
    model = tiny_model("qwen2")
    write_gguf(folder / "a.gguf", "qwen2", model, tensors_of_a_part=10)
    return sorted(folder.glob("*.gguf")), model


def test_the_parts_of_a_split_file_are_read_together(tmp_path: Path) -> None:
    parts, model = split(tmp_path)
    assert [part.name for part in parts] == [f"a-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    made = read_model(describe(parts[0], tmp_path / "made"), torch.float32, "eager").state_dict()
    for name, values in model.state_dict().items():
        assert torch.equal(made[name], values), name


def test_a_split_file_that_is_not_whole_is_refused_by_name(tmp_path: Path) -> None:
    parts, _ = split(tmp_path)
    with pytest.raises(ValueError, match=r"is part 2 of 3: name the first part, a-00001-of-00003"):
        describe(parts[1], tmp_path / "made")
    renamed = parts[0].rename(tmp_path / "b.gguf")
    with pytest.raises(ValueError, match=r"b\.gguf is the first of 3 parts, whose names must end"):
        describe(renamed, tmp_path / "made")
    renamed.rename(parts[0])
    parts[1].write_bytes(parts[1].read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"a-00002-of-00003\.gguf is not a whole GGUF file"):
        describe(parts[0], tmp_path / "made")
    parts[1].unlink()
    with pytest.raises(ValueError, match=r"a-00002-of-00003\.gguf is missing: all 3 parts belong"):
        describe(parts[0], tmp_path / "made")


@pytest.mark.parametrize(
    ("architecture", "kind", "reason"),
    [
        ("clip", None, "holds the part of a model that sees images: name the file of the lang"),
        ("clip", "mmproj", "holds the part of a model that sees images"),
        ("llama", "adapter", "holds a LoRA adapter: give adapters in PEFT's layout"),
        ("imatrix", "imatrix", "holds statistics for quantizing"),
    ],
)
def test_a_file_that_holds_no_model_says_what_it_holds(
    tmp_path: Path, architecture: str, kind: str | None, reason: str
) -> None:
    writer = GGUFWriter(tmp_path / "a.gguf", architecture)
    if kind is not None:
        writer.add_type(kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ValueError, match=reason):
        describe(tmp_path / "a.gguf", tmp_path / "made")


def test_a_tokenizer_beside_the_file_is_preferred(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "a.gguf", "llama", tiny_model("llama"))
    first = describe(source, tmp_path / "first")
    text = (first / "tokenizer.json").read_text().replace('"abc"', '"xyz"')
    (tmp_path / "tokenizer.json").write_text(text)
    assert (describe(source, tmp_path / "second") / "tokenizer.json").read_text() == text


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "a.gguf", "llama", tiny_model("llama"))
    folder = describe(source, tmp_path / "made")
    source.unlink()
    with pytest.raises(UnsupportedModel, match=r"by 'gguf F32', cannot be read.*a\.gguf"):
        read_model(folder, torch.float32, "eager")


def without(key: str, path: Path, **options: Any) -> Path:
    """A file of a llama in which ``key`` has another name of the same length."""
    source = write_gguf(path, "llama", tiny_model("llama", **options))
    source.write_bytes(source.read_bytes().replace(key.encode(), key[:-1].encode() + b"_"))
    return source


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("general.architecture", "no metadata general.architecture"),
        ("llama.block_count", "no metadata llama.block_count"),
        ("token_embd.weight", "no tensor token_embd.weight"),
    ],
)
def test_a_file_that_lacks_a_part_is_refused_by_its_name(
    tmp_path: Path, key: str, reason: str
) -> None:
    source = without(key, tmp_path / "a.gguf")
    with pytest.raises(ValueError, match=reason):
        gguf_checkpoint.convert(source, tmp_path / "made", "float32")
    with pytest.raises(ValueError, match=reason):
        describe(source, tmp_path / "described")


def test_without_their_number_there_are_as_many_key_heads_as_heads(tmp_path: Path) -> None:
    options = {"num_key_value_heads": SIZES["num_attention_heads"]}
    source = without("llama.attention.head_count_kv", tmp_path / "a.gguf", **options)
    model = read_model(describe(source, tmp_path / "made"), torch.float32, "eager")
    expected = tiny_model("llama", **options).state_dict()
    for name, values in model.state_dict().items():
        torch.testing.assert_close(values, expected[name], rtol=0, atol=0)


def per_layer(path: Path, monkeypatch: pytest.MonkeyPatch, method: str, values: list[int]) -> Path:
    """A file of a llama in which ``method`` of the writer stores ``values``, one for each layer."""
    store = getattr(GGUFWriter, method)
    monkeypatch.setattr(GGUFWriter, method, lambda writer, value: store(writer, values))
    return write_gguf(path, "llama", tiny_model("llama", num_hidden_layers=len(values)))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(
    ("method", "value"),
    [("add_head_count", 4), ("add_head_count_kv", 2), ("add_feed_forward_length", 48)],
)
def test_equal_values_of_all_layers_are_read_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, value: int, layers: int
) -> None:
    source = per_layer(tmp_path / "a.gguf", monkeypatch, method, [value] * layers)
    model = read_model(describe(source, tmp_path / "made"), torch.float32, "eager")
    expected = tiny_model("llama", num_hidden_layers=layers).state_dict()
    for name, values in model.state_dict().items():
        torch.testing.assert_close(values, expected[name], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("method", "key", "values"),
    [
        ("add_head_count", "attention.head_count", [4, 2]),
        ("add_head_count_kv", "attention.head_count_kv", [2, 1]),
        ("add_feed_forward_length", "feed_forward_length", [48, 32]),
    ],
)
def test_values_that_differ_from_layer_to_layer_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, key: str, values: list[int]
) -> None:
    source = per_layer(tmp_path / "a.gguf", monkeypatch, method, values)
    reason = re.escape(f"a.gguf has llama.{key} for each layer, {values}")
    with pytest.raises(ValueError, match=reason):
        describe(source, tmp_path / "made")


def test_a_kind_of_positions_that_is_not_understood_is_refused(tmp_path: Path) -> None:
    metadata = {"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}
    source = write_gguf(tmp_path / "a.gguf", "llama", tiny_model("llama"), metadata=metadata)
    with pytest.raises(ValueError, match="type 'longrope': linear and yarn are read"):
        describe(source, tmp_path / "made")


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"rope.scaling.yarn_ext_factor": 0.5}, "yarn_ext_factor is 0.5"),
        ({"rope.scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier is 0.1"),
        ({"rope.scaling.attn_factor": 1.5}, "attn_factor is 1.5"),
        ({"rope.scaling.type": "none", "rope.scaling.attn_factor": 1.5}, "attn_factor is 1.5"),
        ({"rope.scaling.factor": 0.0}, "have no rope.scaling.factor"),
        ({"rope.dimension_count": 4}, "rope.dimension_count is 4"),
    ],
)
def test_settings_of_positions_that_are_not_read_are_refused(
    tmp_path: Path, metadata: dict[str, Any], reason: str
) -> None:
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    source = write_gguf(tmp_path / "a.gguf", "llama", tiny_model("llama"), metadata=yarn | metadata)
    with pytest.raises(ValueError, match=reason):
        describe(source, tmp_path / "made")


@pytest.mark.parametrize(
    ("name", "extra"),
    [("phi3", "blk.0.attn_qkv.bias"), ("llama", "blk.1.attn_norm.bias"), ("qwen2", "output.bias")],
)
def test_a_tensor_that_the_model_does_not_take_is_refused(
    tmp_path: Path, name: str, extra: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    model_type, options, metadata = ARCHITECTURES[name]
    source = write_gguf(
        tmp_path / "a.gguf", name, tiny_model(model_type, **options), metadata=metadata,
        tensors={extra: torch.ones(64)},
    )  # fmt: skip
    with pytest.raises(UnsupportedModel, match=r"bias, which no module of \w+ takes"):
        read_model(describe(source, tmp_path / "made"), torch.float32, "eager")
    assert "attention function" not in caplog.text, "it was read a second time"


def test_a_bias_of_experts_is_refused(tmp_path: Path) -> None:
    model_type, options, metadata = ARCHITECTURES["qwen3moe"]
    source = write_gguf(
        tmp_path / "a.gguf", "qwen3moe", tiny_model(model_type, **options), metadata=metadata,
        tensors={"blk.0.ffn_down_exps.bias": torch.ones(4, 32)},
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"takes 'blk\.0\.ffn_down_exps\.bias'"):
        describe(source, tmp_path / "made")


def test_settings_of_yarn_mean_nothing_without_yarn(tmp_path: Path) -> None:
    source = write_gguf(
        tmp_path / "a.gguf", "llama", tiny_model("llama"),
        metadata={"rope.scaling.type": "none", "rope.scaling.yarn_ext_factor": 0.0},
    )  # fmt: skip
    config = json.loads((describe(source, tmp_path / "made") / "config.json").read_text())
    assert config["rope_parameters"]["rope_type"] == "default"


def test_sizes_are_those_of_the_file(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "a.gguf", "llama", tiny_model("llama"))
    config = json.loads((describe(source, tmp_path / "made") / "config.json").read_text())
    assert {key: config[key] for key in SIZES if key in config} == pytest.approx(
        {key: value for key, value in SIZES.items() if key in config}
    )
    assert config["eos_token_id"] == 0
