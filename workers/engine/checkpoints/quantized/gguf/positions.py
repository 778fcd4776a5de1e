"""Rotary positions: the settings of transformers that a file's metadata and factors stand for."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from workers.engine.checkpoints.quantized.gguf.architecture import (
    FREQUENCIES,
    LONG,
    SHORT,
    Metadata,
    Source,
)

THETA = 10000.0
_LLAMA3_TRAINED = 8192
_LLAMA3 = ({"low_freq_factor": 1.0, "high_freq_factor": 4.0},
           {"low_freq_factor": 1.0, "high_freq_factor": 1.0})  # fmt: skip
"""The settings of Llama 3.1 to 3.3, and those of Llama 4; a file holds only the factors that follow
from them."""
_STANDSTILL = 1e20
"""Factors of positions that shall not turn."""
_OF_YARN = {
    "rope.scaling.yarn_attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
_ATTENTION = {"rope.scaling.attn_factor": 1.0}
LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"
_NOT_OF_YARN = {"rope.scaling.yarn_ext_factor": 1.0}
"""Settings that are not mapped to transformers, and the values that change nothing."""


def read_positions(source: Source, head_dim: int) -> dict[str, Any]:
    """Return the ``rope_parameters`` of a config. Raises ValueError."""
    metadata = source.metadata
    rope: dict[str, Any] = {"rope_theta": metadata.get("rope.freq_base", THETA)}
    if LONG in source.factors or SHORT in source.factors:
        return rope | _read_longrope(source)
    _refuse_other_values(metadata, _ATTENTION)
    factor = metadata.get("rope.scaling.factor", metadata.get("rope.scale_linear"))
    kind = metadata.get("rope.scaling.type", "linear" if factor else "none")
    frequencies = source.factors.get(FREQUENCIES)
    if frequencies is not None and float(frequencies.max()) >= _STANDSTILL:
        turned = int((frequencies < _STANDSTILL).sum())
        part = {"partial_rotary_factor": turned / len(frequencies)}
        return rope | {"rope_type": "proportional"} | part
    if frequencies is not None and float(frequencies.max()) != 1:
        return _llama3_rope(rope, frequencies, head_dim)
    if kind == "none":
        return rope | {"rope_type": "default"}
    if kind not in ("linear", "yarn"):
        raise ValueError(
            f"its rotary positions are of the type {kind!r}: linear and yarn are read, and "
            f"longrope with the tensors {LONG} and {SHORT}"
        )
    if not factor:
        raise ValueError(f"its rotary positions of the type {kind!r} have no rope.scaling.factor")
    rope |= {"rope_type": kind, "factor": factor}
    return rope | _read_yarn(metadata) if kind == "yarn" else rope


def _read_longrope(source: Source) -> dict[str, Any]:
    """Return the settings of longrope, whose factors are tensors. Raises ValueError."""
    for name in (LONG, SHORT):
        if name not in source.factors:
            raise ValueError(f"its rotary positions of the type 'longrope' have no {name}")
    metadata = source.metadata
    length = metadata["context_length"]
    trained = metadata.get("rope.scaling.original_context_length", length)
    settings = {
        "rope_type": "longrope",
        "short_factor": source.factors[SHORT].tolist(),
        "long_factor": source.factors[LONG].tolist(),
        "factor": length / trained,
        "original_max_position_embeddings": trained,
    }
    scale = metadata.get("rope.scaling.attn_factor")
    return settings if scale is None else settings | {"attention_factor": scale}


def _read_yarn(metadata: Metadata) -> dict[str, Any]:
    """Return the settings of YaRN beside its factor. Raises ValueError."""
    _refuse_other_values(metadata, _NOT_OF_YARN)
    length = metadata.get("rope.scaling.original_context_length", metadata["context_length"])
    fields = {field: metadata[key] for key, field in _OF_YARN.items() if key in metadata}
    return {"original_max_position_embeddings": length, **fields}


def refuse_log_multiplier(metadata: Metadata) -> None:
    """Raises ValueError where YaRN scales scores in a way that the model's class does not read."""
    if metadata.get("rope.scaling.type") == "yarn":
        _refuse_other_values(metadata, {LOG_MULTIPLIER: 0.0})


def _refuse_other_values(metadata: Metadata, neutral: Mapping[str, float]) -> None:
    for key, value in neutral.items():
        if (actual := metadata.get(key, value)) != value:
            raise ValueError(f"its {key} is {actual}: only {value} is read")


def _llama3_rope(rope: dict[str, Any], frequencies: Tensor, head_dim: int) -> dict[str, Any]:
    """Return the settings that lead to these factors. Raises ValueError if those of Llama 3 and 4
    do not."""
    factor = round(float(frequencies.max()), 3)
    for settings in _LLAMA3:
        expected = _llama3_factors(rope["rope_theta"], head_dim, factor, settings)
        if frequencies.shape == expected.shape and torch.allclose(frequencies, expected, rtol=1e-3):
            return (
                rope
                | settings
                | {
                    "rope_type": "llama3",
                    "factor": factor,
                    "original_max_position_embeddings": _LLAMA3_TRAINED,
                }
            )
    raise ValueError("rope_freqs.weight are not the factors of Llama 3")


def _llama3_factors(
    theta: float, head_dim: int, factor: float, settings: Mapping[str, float]
) -> Tensor:
    turns = torch.arange(0, head_dim, 2) / head_dim
    cycles = _LLAMA3_TRAINED / (2 * math.pi * theta**turns)
    low, high = settings["low_freq_factor"], settings["high_freq_factor"]
    smooth = ((cycles - low) / (high - low)).clamp(0, 1) if high > low else (cycles >= low).float()
    return 1 / ((1 - smooth) / factor + smooth)
