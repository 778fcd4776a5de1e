"""What the small files of a checkpoint say: its configuration and its tokenizer.

Errors of transformers become one line with the file, the value and what to do.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedTokenizerFast
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from workers.engine.exceptions import UnsupportedModel

_SAME_MODEL = {"kimi_k2": "deepseek_v3"}
"""Names under which repositories with code of their own publish a model that transformers has."""
_ROPE_KEYS = ("rope_type", "type")


def read_config(path: str | Path) -> Any:
    """Return the configuration of a folder or a hub repository, without its code. Raises
    UnsupportedModel."""
    file = Path(path) / "config.json"
    try:
        stated, _ = PreTrainedConfig.get_config_dict(path)
    except (OSError, ValueError) as error:
        raise UnsupportedModel(f"{file} cannot be read: {one_line(error)}") from error
    named = stated.get("model_type") if isinstance(stated, dict) else None
    if not isinstance(named, str):
        is_there = not Path(path).is_dir() or file.is_file()
        raise UnsupportedModel(
            f"{file} {'has no model_type' if is_there else 'is missing'}: fetch it again, or serve "
            "a folder in transformers' layout"
        )
    model_type = _SAME_MODEL.get(named, named)
    if model_type not in CONFIG_MAPPING:
        own_code = "auto_map" in stated
        raise UnsupportedModel(
            f"{file} has the model_type {named!r}, which transformers {transformers.__version__} "
            f"does not know{', and Quire runs no code of repositories' if own_code else ''}: serve "
            "a model whose type docs/models.md lists"
        )
    try:
        if model_type != named:
            return CONFIG_MAPPING[model_type].from_dict({**stated, "model_type": model_type})
        return AutoConfig.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # its checks raise anything
        raise UnsupportedModel(
            f"{file} cannot be read: {one_line(error)}. Correct that value, or fetch the file again"
        ) from error


def read_tokenizer(path: str | Path) -> Any:
    """Return the tokenizer in the tokenizer.json that the web tier reads too, whatever class or
    code tokenizer_config.json names. Raises UnsupportedModel."""
    file = Path(path) / "tokenizer.json"
    if Path(path).is_dir() and not file.is_file():
        raise UnsupportedModel(
            f"{file} is missing: run manage.py prepare_model, which converts other tokenizers"
        )
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
        if tokenizer.eos_token is None:
            tokenizer.eos_token = _read_end_token(Path(path) / "special_tokens_map.json")
        return tokenizer
    except Exception as error:  # tokenizers raises nothing narrower
        raise UnsupportedModel(
            f"{file} cannot be read: {one_line(error)}. Fetch it and tokenizer_config.json again"
        ) from error


def _read_end_token(file: Path) -> str | None:
    """Return the end token of a file that transformers does not read beside a newer
    tokenizer_config.json."""
    token = json.loads(file.read_text("utf-8")).get("eos_token") if file.is_file() else None
    return token.get("content") if isinstance(token, dict) else token


def explain(error: Exception, config: Any) -> str:
    """Return why a model cannot be made, in one line. A missing key is often a value of the
    configuration for which transformers has no function."""
    if not isinstance(error, KeyError) or not error.args:
        return one_line(error)
    for place, value in _places(config.to_dict()):
        if value == error.args[0]:
            known = f": it knows {', '.join(ROPE_INIT_FUNCTIONS)}" if _is_rope(place) else ""
            return (
                f"config.json has {place} = {value!r}, which transformers "
                f"{transformers.__version__} does not know{known}. Fetch a newer version of the "
                "file, or correct that value"
            )
    return f"transformers finds no {one_line(error)}"


def one_line(error: Exception) -> str:
    """Return an error's message without line breaks."""
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    return " ".join(str(text).split()).rstrip(".") or type(error).__name__


def _is_rope(place: str) -> bool:
    return place.rpartition(".")[2] in _ROPE_KEYS


def _places(values: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the texts in a configuration, by their dotted names."""
    for key, value in values.items() if isinstance(values, dict) else ():
        if isinstance(value, str):
            yield f"{above}{key}", value
        yield from _places(value, f"{above}{key}.")
