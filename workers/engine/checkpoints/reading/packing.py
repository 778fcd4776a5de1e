"""Packs linear layers one by one while a checkpoint is read, so that at most one of them is in
memory in 16 bits at a time.

transformers calls a quantizer for each weight that it has read; this one replaces the weight's
layer with a packed layer.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from workers.engine.backends.cpu.layers.packed_linear import (
    is_read_unpacked,
    pack_linear,
)
from workers.engine.backends.cpu.layers.rated_linear import count_rates
from workers.engine.compat import forget_quantized

_METHOD = "quire_packed"
_WEIGHT = "weight"


@register_quantization_config(_METHOD)
class PackedConfig(QuantizationConfigMixin):
    """Asks ``from_pretrained`` for linear layers that are packed as ``dtype``."""

    def __init__(self, dtype: str, **_: Any) -> None:
        method: Any = _METHOD
        super().__init__(quant_method=method)
        self.dtype = dtype


@register_quantizer(_METHOD)
class _Packer(HfQuantizer):
    quantization_config: PackedConfig

    def param_needs_quantization(self, model: Any, param_name: str, **_: Any) -> bool:
        layer, part = _split(param_name)
        module = model.get_submodule(layer)
        # An output layer that shares the embedding's weight is packed once both are loaded.
        is_tied = module is model.get_output_embeddings() and model.config.tie_word_embeddings
        above, own = _split(layer)
        is_packed = type(module) is nn.Linear
        is_packed &= not is_read_unpacked(model.get_submodule(above), own)
        return part == _WEIGHT and is_packed and not is_tied

    def get_quantize_ops(self) -> ConversionOps:
        return _Pack(self.quantization_config.dtype)

    def is_serializable(self, *_: Any, **__: Any) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return False

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        remove: Callable[[Any], None] = self.remove_quantization_config
        remove(model)
        for module in model.modules():
            forget_quantized(module)
        return model


class _Pack(ConversionOps):
    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def convert(
        self,
        input_dict: dict[str, Any],
        source_patterns: list[str],
        target_patterns: list[str],
        **context: Any,
    ) -> dict[str, Any]:
        """``context`` holds the model, the weight's name in it and the names still missing."""
        [value] = input_dict.values()
        weight: Tensor = value[0] if isinstance(value, list) else value
        model, full_name = context["model"], context["full_layer_name"]
        name, _ = _split(full_name)
        above, own = _split(name)
        linear = model.get_submodule(name)
        if tuple(weight.shape) != (linear.out_features, linear.in_features):
            return input_dict
        linear.weight = nn.Parameter(weight, requires_grad=False)
        parent, is_head = model.get_submodule(above), linear is model.get_output_embeddings()
        packed = pack_linear(linear, self._dtype, is_head, count_rates(parent, own))
        if packed is None:
            return input_dict
        setattr(parent, own, packed)
        context["missing_keys"].discard(full_name)
        return {}


def _split(name: str) -> tuple[str, str]:
    above, _, own = name.rpartition(".")
    return above, own
