"""Which architecture a GGUF file holds: several models of transformers share one of its names."""

from collections.abc import Callable

from workers.engine.checkpoints.quantized.gguf import dense, edits, mixtures, names
from workers.engine.checkpoints.quantized.gguf.architecture import Architecture, Source
from workers.engine.checkpoints.quantized.gguf.architectures import (
    ARCHITECTURES,
    make_deepseek,
    make_falcon,
)

_SIGMOID = 2
"""The value of ``expert_gating_func`` for a sigmoid."""


def _lacks_correction(source: Source) -> bool:
    gating = source.metadata.get("expert_gating_func", 0)
    return gating != _SIGMOID and not source.has("exp_probs_b.bias")


_VARIANTS: dict[str, tuple[Callable[[Source], bool], Architecture]] = {
    "llama": (
        lambda source: bool(source.metadata.get("expert_count")),
        Architecture(
            "mixtral",
            layer_tensors=names.EXPERTS,
            edits=edits.INTERLEAVED,
            fields=mixtures.LOCAL_EXPERTS,
        ),
    ),
    "deepseek2": (_lacks_correction, make_deepseek("deepseek_v2")),
    "falcon": (
        lambda source: source.has("attn_norm_2.weight"),
        make_falcon({"attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"}),
    ),
    "granitemoe": (
        lambda source: source.has("ffn_gate_shexp.weight"),
        Architecture(
            "granitemoeshared",
            layer_tensors={
                **names.name_experts("block_sparse_moe", "router"),
                **names.GRANITE_SHARED,
            },
            edits=edits.INTERLEAVED,
            fields={**dense.GRANITE, **mixtures.LOCAL_EXPERTS},
            more=mixtures.read_shared_granite,
        ),
    ),
    "mistral3": (
        lambda source: "attention.temperature_scale" not in source.metadata,
        Architecture("mistral", edits=edits.INTERLEAVED),
    ),
    "olmo2": (
        lambda source: "attention.sliding_window" in source.metadata,
        Architecture("olmo3", layer_tensors=names.NORMS_AFTER, more=dense.read_olmo3),
    ),
}
"""What files of the same architecture hold instead, if the source says so."""
_NO_MODELS = {
    "adapter": "a LoRA adapter: give adapters in PEFT's layout",
    "mmproj": "the part of a model that sees images: name the file of the language model",
    "imatrix": "statistics for quantizing: name the file of the model",
}
"""By ``general.type``."""


def find_architecture(name: str, kind: str | None, source: Source) -> Architecture:
    """Return the architecture of a file by its ``general.architecture`` and ``general.type``.
    Raises ValueError."""
    if kind in _NO_MODELS or name in _NO_MODELS or name == "clip":
        what = _NO_MODELS.get(kind or "", _NO_MODELS.get(name, _NO_MODELS["mmproj"]))
        raise ValueError(f"the GGUF file holds {what}")
    if name not in ARCHITECTURES:
        raise ValueError(
            f"GGUF files of the architecture {name!r} are not read, only {', '.join(ARCHITECTURES)}"
        )
    is_variant, variant = _VARIANTS.get(name, (lambda source: False, ARCHITECTURES[name]))
    return variant if is_variant(source) else ARCHITECTURES[name]
