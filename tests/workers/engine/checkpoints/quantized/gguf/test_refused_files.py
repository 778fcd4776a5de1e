"""A GGUF file that lacks something, or says what is not read, is refused by its name."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFWriter

from tests.workers.engine.checkpoints.quantized.gguf.architectures import (
    ARCHITECTURES,
    describe,
)
from tests.workers.engine.checkpoints.quantized.gguf.small_files import (
    SIZES,
    split,
    tiny_model,
    write_gguf,
)
from workers.engine.checkpoints.reading.checkpoint import read_model
from workers.engine.exceptions import UnsupportedModel
from workers.preparation import gguf_checkpoint


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
