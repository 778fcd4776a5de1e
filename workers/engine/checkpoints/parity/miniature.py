"""A small random model of a model's own structure, whose windows and other lengths are short.

The model itself is too costly to test past a window, a chunk or the length that a rotary embedding
was trained on: that takes thousands of tokens. With its miniature, eighty tokens are enough.
"""

import copy
import re
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from workers.engine.checkpoints.rotary import keep_frequencies
from workers.engine.compat import has_class_for, make_from_config

_LAYERS = 3
_UNREACHED = 128
"""A length beyond any text that a miniature computes."""
_WINDOW, _CHUNK, _TRAINED, _FLOOR, _CHOSEN = 11, 16, 24, 8, 12
_SPAN, _SPANS, _NEAREST = 5, 3, 2
_RATE = 7
"""The most tokens that have a key together; no divisor of a block's size."""

_SHORTER = {
    "sliding_window": _WINDOW,
    "window_size": _WINDOW,
    "attention_window_size": _WINDOW,
    "local_attention": _WINDOW,
    "attention_chunk_size": _CHUNK,
    "original_max_position_embeddings": _TRAINED,
    "floor_scale": _FLOOR,
    "index_topk": _CHOSEN,
    "index_block_size": _SPAN,
    "index_topk_blocks": _SPANS,
    "index_local_blocks": _NEAREST,
}
"""Lengths that decide what a token sees or how its position counts."""

_NARROWER = {
    "intermediate_size": 256,
    "intermediate_size_mlp": 256,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "ffn_dim": 256,
    "ffn_hidden_size": 256,
    "n_inner": 256,
    "vocab_size": 1024,
    "vocab_size_per_layer_input": 1024,
}
"""Sizes that affect only the cost."""

_DEPTHS = ("num_hidden_layers", "num_layers", "depth")
"""Numbers of layers in a part of a model that no text passes."""

_ROPE = re.compile("rope")


def make_miniature(
    model: Any, max_len: int, attention: str, dtype: torch.dtype, seed: int = 0
) -> Any:
    """Make a miniature copy of ``model`` on the CPU, with the same types of layers. Limits of
    positions are kept up to ``max_len``. If the configuration cannot be made smaller, the exception
    of the model's code passes through."""
    config = copy.deepcopy(model.config)
    text = config.get_text_config()
    layers = _take_layer_settings(text)
    for settings in (text, *layers.values()):
        _shorten(settings, max_len)
        _narrow(settings)
    kept = _keep_layers(text, layers)
    if layers:
        given = {new: vars(layers[old]) for new, old in enumerate(kept) if old in layers}
        text.per_layer_config = given
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(text, name, 0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        miniature = _make(type(model), config, attn_implementation=attention, dtype=torch.float32)
        _draw(miniature)
    keep_frequencies(miniature, max_len)  # as the model itself does
    return miniature.to(dtype).eval()


def _make(kind: Any, config: Any, **options: Any) -> Any:
    """Return a model of this class; or only its language model, if that has a class of its own."""
    text = config.get_text_config()
    if text is not config and has_class_for(AutoModelForCausalLM, text):
        make: Any = AutoModelForCausalLM.from_config
        return make(text, **options)
    for part in vars(config).values():  # which read images, for example
        if isinstance(part, PreTrainedConfig) and part is not text:
            for name in _DEPTHS:
                if isinstance(getattr(part, name, None), int):
                    setattr(part, name, 1)
    return make_from_config(kind, config, **options)


def _take_layer_settings(text: Any) -> dict[int, Any]:
    """Remove the settings that differ by layer from the configuration. Without them, it answers for
    all its names again."""
    by_layer = text.to_dict().get("per_layer_config") or {}
    if by_layer:
        text.per_layer_config = None
    return {int(layer): SimpleNamespace(**settings) for layer, settings in by_layer.items()}


def _shorten(settings: Any, max_len: int) -> None:
    def shorter(length: int, wanted: int) -> int:
        return min(length, wanted) if length < max_len else max(length, _UNREACHED)

    for name, wanted in _SHORTER.items():
        if length := getattr(settings, name, None):
            setattr(settings, name, shorter(length, wanted))
    rates = getattr(settings, "compress_rates", None) or {}  # by kind of layer
    rates.update({kind: min(rate, _RATE) for kind, rate in rates.items()})
    for rope in _rope_settings(settings):
        if length := rope.get("original_max_position_embeddings"):
            rope["original_max_position_embeddings"] = shorter(length, _TRAINED)


def _rope_settings(settings: Any) -> Iterator[dict[str, Any]]:
    """Yield the dictionaries that describe rotary embeddings, one for each kind of layer."""
    for name, value in vars(settings).items():
        if _ROPE.search(name) and isinstance(value, dict):
            yield value
            yield from (inner for inner in value.values() if isinstance(inner, dict))


def _narrow(settings: Any) -> None:
    for name, width in _NARROWER.items():
        given = getattr(settings, name, None)
        if isinstance(given, int):
            setattr(settings, name, min(width, given))
        elif isinstance(given, list):  # by layer
            setattr(settings, name, [min(width, each) for each in given])


def _keep_layers(text: Any, layers: Mapping[int, Any]) -> list[int]:
    """Keep a few layers, among them one of every kind that the configuration lists, and return
    them. ``layers`` are the settings of those that have their own."""
    total = text.num_hidden_layers
    lists = {
        name: value
        for name, value in vars(text).items()
        if isinstance(value, (list, tuple)) and len(value) == total
    }
    # So many layers at the end use the keys and values of earlier ones of their kind.
    shared = getattr(text, "num_kv_shared_layers", None) or 0
    first: dict[str, int] = {}
    for layer in range(total):
        listed = [value[layer] for value in lists.values()]
        kind = str([layer >= total - shared, layers.get(layer), *listed])
        first.setdefault(kind, layer)
    dense = getattr(text, "first_k_dense_replace", None)
    num_first = max(_LAYERS, dense + 1 if isinstance(dense, int) else 0)
    kept = sorted({*first.values(), *range(min(num_first, total))})
    for name, value in lists.items():
        setattr(text, name, [value[layer] for layer in kept])
    text.num_hidden_layers = len(kept)
    if shared:
        text.num_kv_shared_layers = sum(layer >= total - shared for layer in kept)
    return kept


@torch.no_grad()
def _draw(miniature: Any) -> None:
    """Weights large enough that every layer changes the logits."""
    for parameter in miniature.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 1.5 * parameter.shape[-1] ** -0.5)


def choose_every_expert(miniature: Any) -> None:
    """Send each token to all experts of the mixtures, so that rounding cannot send it to another
    one."""
    for module in miniature.modules():
        router: Any = module
        if hasattr(router, "per_expert_scale"):
            router.config.top_k_experts = router.config.num_experts
        weight = getattr(getattr(router, "wg", router), "weight", None)
        if weight is None or not isinstance(getattr(router, "top_k", None), int):
            continue
        router.top_k = len(weight)
        groups = getattr(router, "num_group", getattr(router, "n_group", None))
        if groups is not None:
            router.topk_group = groups
