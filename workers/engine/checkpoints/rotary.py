"""Rotary embeddings whose frequencies no sequence changes."""

from typing import Any

_LENGTH = "original_max_seq_len"
"""The attribute of transformers' rotary modules with the length up to which frequencies stay."""


def keep_frequencies(model: Any, max_len: int) -> None:
    """Have dynamic rotary embeddings keep their initial frequencies, if sequences of ``max_len``
    tokens do not change them. Otherwise they read the longest position of each batch on the host,
    which has to wait for a GPU."""
    for module in model.modules():
        kind, length = getattr(module, "rope_type", None), getattr(module, _LENGTH, None)
        if not isinstance(length, int) or max_len > length:
            continue
        if isinstance(kind, dict):  # by kind of layer
            module.rope_type = {layer: _get_kept_name(each) for layer, each in kind.items()}
        elif isinstance(kind, str):
            module.rope_type = _get_kept_name(kind)


def _get_kept_name(kind: str) -> str:
    """Return the name under which transformers leaves the frequencies as they are."""
    return "default" if "dynamic" in kind else kind
