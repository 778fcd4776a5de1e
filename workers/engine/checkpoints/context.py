"""How long sequences may become: by the configuration, and by the memory of the KV cache."""

from collections.abc import Iterable
from typing import Any

import torch

from workers.engine.backends.base.budget import cache_bytes
from workers.engine.config import EngineConfig
from workers.engine.core.layer_shape import LayerShape
from workers.engine.exceptions import UnsupportedModel

_SCALED = ("yarn", "linear", "dynamic")
"""Rotary positions that are stretched by a factor, also where `max_position_embeddings` still is
the length that the model was trained with, as in Qwen's documentation of YaRN."""
_LONGROPE = "longrope"
_LEAST_POSITIONS = 8192
"""A model is compared with its own attention at fewer positions than this."""


def resolve_context(text_config: Any, config: EngineConfig) -> int:
    """Return the longest that a sequence may become. Raises UnsupportedModel."""
    stated: int | None = getattr(text_config, "max_position_embeddings", None)
    if stated is not None and stated < 1:
        stated = None  # XLNet has -1
    wanted = config.max_model_len or _get_short_length(text_config) or stated
    if wanted is None:
        raise UnsupportedModel("The model states no context length: set max_model_len")
    limit = stated and _stretch(stated, text_config)
    if limit is not None and wanted > limit:
        raise UnsupportedModel(
            f"max_model_len {wanted} exceeds the model's context of {limit}: set it to {limit} at "
            "most. For a model whose makers name a longer context with YaRN, write their "
            "rope_parameters (rope_type, factor, original_max_position_embeddings) into its "
            "config.json"
        )
    return wanted


def _get_short_length(text_config: Any) -> int | None:
    """Return the length up to which longrope has the factors that fit short sequences best; None
    for other rotary positions. Longer ones are served if ``max_model_len`` says so, as by vLLM."""
    rope = getattr(text_config, "rope_parameters", None) or {}
    return rope["original_max_position_embeddings"] if rope.get("rope_type") == _LONGROPE else None


def _stretch(stated: int, text_config: Any) -> int:
    """Return the length that a ``stated`` one becomes by the factor of rotary positions."""
    rope = getattr(text_config, "rope_parameters", None) or {}
    factor, kind = rope.get("factor"), rope.get("rope_type")
    if kind not in _SCALED or not factor:
        return stated
    return max(stated, int(factor * (rope.get("original_max_position_embeddings") or stated)))


def count_positions(
    max_len: int, shapes: Iterable[LayerShape], dtype: torch.dtype, config: EngineConfig
) -> int:
    """For how many positions tables are made: as many as sequences of ``max_len`` have, but no more
    than the KV cache of the CPU has room for."""
    size = config.block_size
    block_bytes = sum(shape.block_bytes(size, dtype) for shape in shapes)
    room = max_len
    if block_bytes:
        room = cache_bytes(config, torch.device("cpu")) * size // block_bytes
    return min(max_len, max(room, _LEAST_POSITIONS))
