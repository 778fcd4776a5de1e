"""GGUF files are read as the models that were stored, block by block."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from tests.workers.engine.checkpoints.quantized.gguf import small_files
from tests.workers.engine.checkpoints.quantized.gguf.architectures import (
    ARCHITECTURES,
    describe,
)
from tests.workers.engine.checkpoints.quantized.gguf.small_files import (
    SIZES,
    WORDS,
    split,
    tiny_model,
    write_gguf,
)
from workers.engine.checkpoints.quantized.gguf import reader
from workers.engine.checkpoints.reading.checkpoint import read_model
from workers.engine.exceptions import UnsupportedModel

Q = GGMLQuantizationType
WIDE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}


@pytest.mark.represented_by("llama", "gemma3")
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


@pytest.mark.represented_by("8")
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


def test_the_parts_of_a_split_file_are_read_together(tmp_path: Path) -> None:
    parts, model = split(tmp_path)
    assert [part.name for part in parts] == [f"a-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    made = read_model(describe(parts[0], tmp_path / "made"), torch.float32, "eager").state_dict()
    for name, values in model.state_dict().items():
        assert torch.equal(made[name], values), name


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


def test_sizes_are_those_of_the_file(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "a.gguf", "llama", tiny_model("llama"))
    config = json.loads((describe(source, tmp_path / "made") / "config.json").read_text())
    assert {key: config[key] for key in SIZES if key in config} == pytest.approx(
        {key: value for key, value in SIZES.items() if key in config}
    )
    assert config["eos_token_id"] == 0
