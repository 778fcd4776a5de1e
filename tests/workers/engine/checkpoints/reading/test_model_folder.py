"""What the small files of a folder say, and how mistakes in them are named."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workers.engine.checkpoints.reading.test_tensor_checks import DEEPSEEK
from tests.workers.engine.tiny_models import LLAMA, save_model
from workers.engine.checkpoints.loader import load_model
from workers.engine.checkpoints.reading.checkpoint import read_model
from workers.engine.checkpoints.reading.model_folder import read_tokenizer
from workers.engine.config import EngineConfig
from workers.engine.exceptions import UnsupportedModel

CONFIG = EngineConfig(device="cpu", dtype="float32", block_size=4, kv_cache_bytes=2**22)
OWN_CODE = {"AutoConfig": "configuration_own.OwnConfig", "AutoModel": "modeling_own.OwnModel"}


def change(file: Path, **values: Any) -> None:
    """Set some values of a file in JSON; None removes one."""
    document = json.loads(file.read_text()) | values
    kept = {key: value for key, value in document.items() if value is not None}
    file.write_text(json.dumps(kept))


def test_kimi_k2_is_read_as_the_deepseek_v3_that_it_is(tmp_path: Path) -> None:
    folder = save_model(tmp_path, {**LLAMA, **DEEPSEEK, "num_nextn_predict_layers": 0})
    expected = read_model(folder, torch.float32, "eager")
    change(folder / "config.json", model_type="kimi_k2", auto_map=OWN_CODE)
    read = read_model(folder, torch.float32, "eager")
    assert type(read) is type(expected)
    for name, values in expected.state_dict().items():
        assert torch.equal(read.state_dict()[name], values), name


def test_the_code_of_a_repository_is_not_needed_beside_tokenizer_json(tmp_path: Path) -> None:
    folder = save_model(tmp_path)
    expected = load_model(folder, CONFIG)
    change(folder / "config.json", auto_map=OWN_CODE)
    change(
        folder / "tokenizer_config.json",
        auto_map={"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]},
        tokenizer_class="OwnTokenizer",
    )
    loaded = load_model(folder, CONFIG)
    assert loaded.vocabulary.token_bytes == expected.vocabulary.token_bytes
    assert loaded.eos_token_ids == expected.eos_token_ids


def test_a_folder_without_tokenizer_json_is_refused_by_name(tmp_path: Path) -> None:
    folder = save_model(tmp_path)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.json is missing: run manage\.py prep"):
        read_tokenizer(folder)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.json cannot be read: .* Fetch it"):
        read_tokenizer(folder)


@pytest.mark.parametrize("lists_tokens", [False, True])
def test_end_tokens_that_only_the_map_of_special_tokens_names_count(
    tmp_path: Path, lists_tokens: bool
) -> None:
    folder = save_model(tmp_path)
    listed = {"0": {"content": "<|end|>"}, "1": {"content": "<tool>"}} if lists_tokens else None
    change(folder / "tokenizer_config.json", eos_token=None, added_tokens_decoder=listed)
    (folder / "special_tokens_map.json").write_text('{"eos_token": {"content": "<tool>"}}')
    assert load_model(folder, CONFIG).eos_token_ids == {0, 1}


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no type": ({"model_type": None}, r"config\.json has no model_type: fetch it again"),
    "unknown type": (
        {"model_type": "unheard"},
        r"config\.json has the model_type 'unheard', which transformers 5\S+ does not know: serve",
    ),
    "unknown type with code": (
        {"model_type": "unheard", "auto_map": OWN_CODE},
        r"model_type 'unheard', .* and Quire runs no code of repositories: serve a model whose",
    ),
    "wrong type of value": (
        {"hidden_size": "64"},
        r"config\.json cannot be read: .*'hidden_size' expected int, got str \(value: '64'\)\. Cor",
    ),
    "values that contradict": ({"num_attention_heads": 5}, r"multiple of .* heads \(5\)\. Correct"),
    "division by zero": ({"num_attention_heads": 0}, r"config\.json cannot be read: integer"),
    "unknown positions": (
        {"rope_parameters": None, "rope_scaling": {"type": "su", "factor": 2.0}},
        r"rope_parameters\.type = 'su', which transformers .* it knows linear, .*yarn.*\. Fetch",
    ),
    "positions without a factor": (
        {"rope_parameters": {"rope_type": "yarn"}},
        r"config\.json cannot be read: Missing required keys in `rope_parameters` .*'factor'",
    ),
    "unknown activation": ({"hidden_act": "mystery"}, r"config\.json has hidden_act = 'mystery'"),
    "another shape": (
        {"intermediate_size": 128},
        r"mlp\.down_proj\.weight has the shape \[64, 96\] in the checkpoint and \[64, 128\] by its",
    ),
}


@pytest.mark.filterwarnings("ignore")  # of transformers, on positions
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_with_file_value_and_remedy(tmp_path: Path, mistake: str) -> None:
    values, reason = MISTAKES[mistake]
    folder = save_model(tmp_path)
    change(folder / "config.json", **values)
    with pytest.raises(UnsupportedModel, match=reason) as caught:
        read_model(folder, torch.float32, "eager")
    assert "\n" not in str(caught.value)
    assert "trust_remote_code" not in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[]", '"x"'])
def test_a_configuration_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    folder = save_model(tmp_path)
    (folder / "config.json").write_text(text)
    with pytest.raises(UnsupportedModel, match=r"config\.json"):
        read_model(folder, torch.float32, "eager")


def test_a_folder_without_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"config\.json is missing: fetch it again"):
        read_model(tmp_path, torch.float32, "eager")
