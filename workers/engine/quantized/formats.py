"""Which module reads a checkpoint, by the ``quantization_config`` in its config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from workers.engine.exceptions import UnsupportedModel
from workers.engine.quantized import awq, bitsandbytes, compressed_tensors, fp8, gptq, mxfp4
from workers.engine.quantized.gguf import GGUFFile
from workers.engine.quantized.stored import Stored, open_tensors

_SETTING = "quantization_config"
_OLD_SETTING = "compression_config"
_GGUF = "gguf"
"""The format of a folder whose configuration names the ``file`` with the weights."""
_SCALED = {"F8_E4M3", "F8_E5M2", "I8", "U8"}
"""Types of numbers, as safetensors names them, that no unquantized weight has."""
_WEIGHTS = (".weight", "_proj")
"""How the names of weights end: those of all experts in one tensor have no ``.weight``. Other
tensors of bytes are no weights, such as the masks of GPT-2."""


class _Reader(Protocol):
    """The interface of a module of this folder."""

    def weights(
        self, tensors: Mapping[str, Stored], settings: Mapping[str, Any]
    ) -> dict[str, Stored]:
        """The tensors as in an unquantized checkpoint. Reading a tensor raises ValueError or
        KeyError if its parts do not fit together."""
        ...

    def refusal(self, settings: Mapping[str, Any]) -> str | None:
        """Why a checkpoint with these settings cannot be read."""
        ...


_READERS: dict[str, _Reader] = {
    "awq": awq,
    "bitsandbytes": bitsandbytes,
    "compressed-tensors": compressed_tensors,
    "fbgemm_fp8": fp8,
    "fp8": fp8,
    "gptq": gptq,
    "modelopt": fp8,
    "mxfp4": mxfp4,
}
"""By ``quant_method``."""


@dataclass(frozen=True, slots=True)
class Format:
    """How a checkpoint's weights are quantized, and whether this engine reads them itself."""

    method: str
    """The ``quant_method``."""
    settings: Mapping[str, Any]

    def __str__(self) -> str:
        kind = self.settings.get("type")
        return f"{self.method} {kind}" if self.method == _GGUF and kind else self.method

    @property
    def is_read_here(self) -> bool:
        """Whether :meth:`weights` reads it; if not, transformers may, with a separate package."""
        return self.method in _READERS or self.method == _GGUF

    @property
    def is_complete(self) -> bool:
        """Whether the model takes each of its tensors. Other checkpoints may hold more than the
        model, such as heads for drafts."""
        return self.method == _GGUF

    def weights(self, path: str | Path) -> dict[str, Stored]:
        """The weights of a folder or a hub repository, by their names in an unquantized checkpoint;
        none is read yet. Raises OSError and ValueError."""
        if self.method == _GGUF:
            return GGUFFile(Path(path) / self.settings["file"]).weights()
        weights = _READERS[self.method].weights(open_tensors(path), self.settings)
        _refuse_unscaled(weights)
        return weights


def _refuse_unscaled(weights: Mapping[str, Stored]) -> None:
    """Raise ValueError for a weight that is still as it is stored, in numbers that need scales."""
    for name, stored in weights.items():
        dtype = stored.get_dtype() if hasattr(stored, "get_dtype") else None
        if dtype in _SCALED and name.endswith(_WEIGHTS):
            raise ValueError(f"{name} is stored as {dtype} without its scales")


def format_of(config: Any) -> Format | None:
    """The format that a model's configuration names. Raises UnsupportedModel for one that nothing
    here can read."""
    settings = getattr(config, _SETTING, None) or getattr(config, _OLD_SETTING, None)
    if settings is None:
        return None
    if not isinstance(settings, Mapping):
        settings = settings.to_dict()
    method = settings.get("quant_method")
    known = {*AUTO_QUANTIZATION_CONFIG_MAPPING, *_READERS}
    if method not in known or (method == _GGUF and "file" not in settings):
        raise UnsupportedModel(
            f"quantization_config has the quant_method {method!r}, which is unknown. Serve the "
            "checkpoint that is not quantized, or one of: " + ", ".join(sorted(_READERS))
        )
    reader = _READERS.get(method)
    if reader is not None and (reason := reader.refusal(settings)) is not None:
        raise UnsupportedModel(f"quantization_config of {method!r} cannot be served: {reason}")
    return Format(str(method), settings)


def without_format(config: Any) -> None:
    """Remove what :func:`format_of` finds, also from the parts of a composed configuration."""
    for part in (config, config.get_text_config()):
        for name in (_SETTING, _OLD_SETTING):
            if hasattr(part, name):
                delattr(part, name)
