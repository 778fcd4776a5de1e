"""The sizes that a config.json states, as transformers reads them.

Families name the context length differently, and the file of a model may leave out what its family
has by default: Gemma 3's leave out the size of the vocabulary. The web tier runs without
transformers, so a table has these names and defaults
(`python -m tests.conformance.config_sizes` writes it).
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("config_sizes.json")

_LENGTH, _ORIGINAL = "max_position_embeddings", "original_max_position_embeddings"
_STRETCHED = ("yarn", "linear", "dynamic")


def get_vocab_size(config: Mapping[str, object]) -> int | None:
    return _get_size(config, "vocab_size")


def get_context_length(config: Mapping[str, object]) -> int | None:
    """Return the context length that the configuration states; None if it states none. With
    longrope, that is the length up to which its short factors hold, as workers have it."""
    text = get_text_config(config)
    rope = _get_rope(text)
    stated = _get_size(config, _LENGTH)
    if rope.get("rope_type", rope.get("type")) != "longrope" or stated is None:
        return stated
    original = rope.get(_ORIGINAL) or text.get(_ORIGINAL)
    return original if isinstance(original, int) else stated


def get_context_limit(config: Mapping[str, object]) -> int | None:
    """Return the most tokens that `max_model_len` may allow: more than the context length where
    rotary positions are stretched by a factor, as Qwen documents for YaRN."""
    stated = _get_size(config, _LENGTH)
    rope = _get_rope(get_text_config(config))
    kind, factor = rope.get("rope_type", rope.get("type")), rope.get("factor")
    if stated is None or kind not in _STRETCHED or not isinstance(factor, int | float):
        return stated
    original = rope.get(_ORIGINAL) or stated
    return max(stated, int(factor * original))


def get_text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part that describes the language model, with its model type."""
    text = config.get("text_config") or config
    return {"model_type": config.get("model_type"), **text}


def _get_rope(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the configuration says of rotary positions."""
    return text.get("rope_parameters") or text.get("rope_scaling") or {}


def _get_size(config: Mapping[str, object], key: str) -> int | None:
    text = get_text_config(config)
    family = _load_table().get(text["model_type"] or "", {})
    for name in (key, family.get(f"{key}_key")):
        value = text.get(name) if name else None
        if isinstance(value, int):
            return value if value > 0 else None
    return family.get(key)


@cache
def _load_table() -> Mapping[str, Mapping[str, Any]]:
    table: dict[str, dict[str, object]] = json.loads(TABLE.read_text("utf-8"))
    return table
