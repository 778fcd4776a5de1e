"""What is read of a model folder, and what is said when something is missing."""

import json
from pathlib import Path
from typing import Any

import pytest

from completions.catalog import model_files
from completions.catalog.entries import ModelEntry
from completions.catalog.model_files import ModelFiles, ModelFilesError


def load(folder: Path, max_model_len: int | None = None, **documents: Any) -> ModelFiles:
    folder.mkdir(exist_ok=True)
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    model_files.load.cache_clear()
    return model_files.load(ModelEntry("m", folder, max_model_len=max_model_len))


SIZES = {"vocab_size": 10, "max_position_embeddings": 64}


def test_vocabulary_and_context_come_from_the_configuration(tmp_path: Path) -> None:
    model = load(tmp_path, config=SIZES)
    assert (model.vocab_size, model.max_model_len, model.eos_token_ids) == (10, 64, ())


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (None, None),
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"quant_method": "gguf", "file": "../a.gguf", "type": "Q4_K_M"}, "gguf Q4_K_M"),
    ],
)
def test_the_format_of_rounded_weights_is_named(
    tmp_path: Path, settings: dict[str, Any] | None, expected: str | None
) -> None:
    config = {**SIZES, "quantization_config": settings}
    assert load(tmp_path, config=config).quantization == expected


@pytest.mark.parametrize(("algorithm", "expected"), [("NVFP4", "modelopt"), (None, None)])
def test_a_file_of_modelopt_names_the_format_too(
    tmp_path: Path, algorithm: str | None, expected: str | None
) -> None:
    settings = {"quantization": {"quant_algo": algorithm, "kv_cache_quant_algo": "FP8"}}
    assert load(tmp_path, config=SIZES, hf_quant_config=settings).quantization == expected


def test_the_weights_of_a_gguf_file_have_a_version(tmp_path: Path) -> None:
    stamps = [{"file": "a.gguf", "bytes": n, "modified": 1} for n in (1, 2)]
    versions = {
        load(tmp_path, config=SIZES, manifest={"source": stamp, "files": {}}).weight_version
        for stamp in stamps
    }
    assert len(versions) == 2
    assert None not in versions


def test_a_nested_text_configuration_is_read(tmp_path: Path) -> None:
    model = load(tmp_path, config={"text_config": {**SIZES, "eos_token_id": 3}, "vocab_size": 99})
    assert (model.vocab_size, model.max_model_len, model.eos_token_ids) == (10, 64, (3,))


@pytest.mark.parametrize(("wanted", "expected"), [(32, 32), (64, 64), (128, 64), (None, 64)])
def test_models_toml_can_shorten_the_context(
    tmp_path: Path, wanted: int | None, expected: int
) -> None:
    assert load(tmp_path, wanted, config=SIZES).max_model_len == expected


@pytest.mark.parametrize(("wanted", "expected"), [(None, 64), (200, 200), (300, 256)])
def test_models_toml_can_lengthen_a_stretched_context(
    tmp_path: Path, wanted: int | None, expected: int
) -> None:
    config = {**SIZES, "rope_scaling": {"type": "yarn", "factor": 4.0}}
    assert load(tmp_path, wanted, config=config).max_model_len == expected


@pytest.mark.parametrize(
    ("generation", "expected"),
    [({"eos_token_id": [5, 6]}, (5, 6, 3)), ({"eos_token_id": 3}, (3,)), ({}, (3,))],
)
def test_stop_ids_are_collected_from_all_files(
    tmp_path: Path, generation: Any, expected: tuple[int, ...]
) -> None:
    config = {**SIZES, "eos_token_id": 3}
    assert load(tmp_path, config=config, generation_config=generation).eos_token_ids == expected


def test_stop_ids_of_models_toml_come_on_top(tmp_path: Path) -> None:
    load(tmp_path, config={**SIZES, "eos_token_id": 3})
    model_files.load.cache_clear()
    more = ModelEntry("m", tmp_path, stop_token_ids=(9, 3))
    assert model_files.load(more).eos_token_ids == (3, 9)
    with pytest.raises(ModelFilesError, match="stop_token_ids holds 10, beyond its 10 tokens"):
        model_files.load(ModelEntry("m", tmp_path, stop_token_ids=(10,)))


def test_chat_templates(tmp_path: Path) -> None:
    assert load(tmp_path, config=SIZES).chat_template is None
    assert load(tmp_path, tokenizer_config={"chat_template": "a"}).chat_template == "a"
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert load(tmp_path, tokenizer_config={"chat_template": named}).chat_template == "d"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert load(tmp_path).chat_template == "file"
    folder = tmp_path / "additional_chat_templates"
    folder.mkdir()
    (folder / "tool_use.jinja").write_text("tools")
    named = load(tmp_path)
    assert [named.choose_template(has_tools) for has_tools in (False, True)] == ["file", "tools"]


def test_a_template_for_tools_among_several_by_name(tmp_path: Path) -> None:
    by_name = [{"name": name, "template": name[0]} for name in ("default", "rag", "tool_use")]
    files = load(tmp_path, config=SIZES, tokenizer_config={"chat_template": by_name})
    assert [files.choose_template(has_tools) for has_tools in (False, True)] == ["d", "t"]
    files = load(tmp_path, config=SIZES, tokenizer_config={"chat_template": by_name[:1]})
    assert files.choose_template(has_tools=True) == "d"


def test_models_that_come_with_an_encoder_have_a_template_of_ours(tmp_path: Path) -> None:
    files = load(tmp_path, config={**SIZES, "model_type": "deepseek_v4"}, tokenizer_config={})
    assert "DSML" in (files.chat_template or "")
    own = load(tmp_path, config=SIZES, tokenizer_config={"chat_template": "a"})
    assert own.chat_template == "a"


def test_special_tokens(tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": None}
    model = load(tmp_path, config=SIZES, tokenizer_config=config)
    assert model.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {"bos_token": "<s>", "eos_token": "</s>"}),
        (
            {"eos_token": None, "added_tokens_decoder": {}},
            {"bos_token": "<s>", "eos_token": "</s>"},
        ),
        ({"eos_token": "<e>"}, {"bos_token": "<s>", "eos_token": "</s>"}),
        (
            {"eos_token": "<e>", "added_tokens_decoder": {}},
            {"bos_token": "<s>", "eos_token": "<e>"},
        ),
    ],
)
def test_special_tokens_of_their_own_file(
    tmp_path: Path, config: dict[str, Any], expected: dict[str, str]
) -> None:
    tokens = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}}
    model = load(tmp_path, config=SIZES, tokenizer_config=config, special_tokens_map=tokens)
    assert model.special_tokens == expected


@pytest.mark.parametrize("text", ["[]", '"x"', "null"])
def test_a_file_that_holds_no_object_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelFilesError, match=r"config\.json: it holds no JSON object"):
        load(tmp_path)


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"model m: .*config\.json is missing"):
        load(tmp_path / "absent")


@pytest.mark.parametrize("config", [{}, {"max_position_embeddings": 64}])
def test_a_configuration_without_a_vocabulary(tmp_path: Path, config: Any) -> None:
    with pytest.raises(ModelFilesError, match=r"model m: .*config\.json states no vocab_size"):
        load(tmp_path, config=config)


def test_a_model_without_a_context_length_needs_one(tmp_path: Path) -> None:
    mamba = {"model_type": "mamba", "vocab_size": 10}
    with pytest.raises(ModelFilesError, match=r"context length; set max_model_len in models\.toml"):
        load(tmp_path, config=mamba)
    assert load(tmp_path, 32, config=mamba).max_model_len == 32


def test_sizes_may_have_the_names_and_the_defaults_of_a_family(tmp_path: Path) -> None:
    model = load(tmp_path, config={"model_type": "gpt2", "vocab_size": 10, "n_positions": 64})
    assert (model.vocab_size, model.max_model_len) == (10, 64)
    text = {"model_type": "gemma3_text", "hidden_size": 64}
    model = load(tmp_path, config={"model_type": "gemma3", "text_config": text})
    assert (model.vocab_size, model.max_model_len) == (262208, 131072)


def test_a_broken_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelFilesError, match="cannot read"):
        load(tmp_path)


def test_a_broken_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelFilesError, match=r"tokenizer\.json cannot be read"):
        _ = load(tmp_path, config=SIZES).tokenizer


def test_a_missing_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"tokenizer\.json is missing"):
        _ = load(tmp_path, config=SIZES).tokenizer


def test_a_failure_is_not_remembered(tmp_path: Path) -> None:
    entry = ModelEntry("m", tmp_path)
    with pytest.raises(ModelFilesError):
        model_files.load(entry)
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    assert model_files.load(entry).vocab_size == 10
