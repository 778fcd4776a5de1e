"""Which module reads a checkpoint, by the ``quantization_config`` in its config.json, or by the
hf_quant_config.json beside it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from workers.engine.checkpoints.quantized import (
    autoround,
    awq,
    bitsandbytes,
    compressed_tensors,
    fp8,
    gptq,
    modelopt,
    mxfp4,
)
from workers.engine.checkpoints.quantized.gguf.file import GGUFFile
from workers.engine.checkpoints.quantized.stored import Stored, open_tensors
from workers.engine.exceptions import UnsupportedModel

_SETTING = "quantization_config"
_OLD_SETTING = "compression_config"
_GGUF = "gguf"
"""The format of a folder whose configuration names the ``file`` with the weights."""
_MODELOPT_FILE = "hf_quant_config.json"
"""Where older versions of ModelOpt state what newer ones write into config.json."""


class _Reader(Protocol):
    """The interface of a module of this folder."""

    def weights(
        self, tensors: Mapping[str, Stored], settings: Mapping[str, Any]
    ) -> dict[str, Stored]:
        """Return the tensors as in an unquantized checkpoint. Reading a tensor raises ValueError or
        KeyError if its parts do not fit together."""
        ...

    def refusal(self, settings: Mapping[str, Any]) -> str | None:
        """Return why a checkpoint with these settings cannot be read."""
        ...


_READERS: dict[str, _Reader] = {
    "auto-round": autoround,
    "awq": awq,
    "bitsandbytes": bitsandbytes,
    "compressed-tensors": compressed_tensors,
    "fbgemm_fp8": fp8,
    "fp8": fp8,
    "gptq": gptq,
    "modelopt": modelopt,
    "modelopt_fp4": modelopt,
    "modelopt_mixed": modelopt,
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

    def weights(self, path: str | Path, dtype: torch.dtype = torch.float32) -> dict[str, Stored]:
        """Return the weights of a folder or a hub repository, by their names in an unquantized
        checkpoint; none is read yet. If they are to become ``dtype``, some are read as such, which
        takes less memory. Raises OSError and ValueError."""
        if self.method == _GGUF:
            return GGUFFile(Path(path) / self.settings["file"], dtype).weights()
        return _READERS[self.method].weights(open_tensors(path), self.settings)


def find_format(config: Any, path: str | Path) -> Format | None:
    """Return the format that a model's configuration or another file of its folder names. Raises
    UnsupportedModel for one that nothing here can read."""
    settings = getattr(config, _SETTING, None) or getattr(config, _OLD_SETTING, None)
    settings = settings or _modelopt_settings(Path(path) / _MODELOPT_FILE)
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
        raise UnsupportedModel(
            f"the quantization by {method!r} cannot be served: {reason}. Serve the checkpoint in "
            "16 bits, or another one that docs/models.md lists under quantized checkpoints"
        )
    return Format(str(method), settings)


def _modelopt_settings(path: Path) -> Mapping[str, Any] | None:
    """Return what ModelOpt's own file states, as its ``quantization_config``; None if only the KV
    cache is quantized. Raises UnsupportedModel for a file that is no such JSON."""
    try:
        document = json.loads(path.read_text("utf-8"))
        settings: Mapping[str, Any] = document["quantization"]
        algorithm = settings.get("quant_algo")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnsupportedModel(f"{path} cannot be read: {error!r}. Fetch it again") from error
    return {**settings, "quant_method": "modelopt"} if algorithm else None


def remove_format(config: Any) -> None:
    """Remove what :func:`find_format` finds, also from the parts of a composed configuration."""
    for part in (config, config.get_text_config()):
        for name in (_SETTING, _OLD_SETTING):
            if hasattr(part, name):
                delattr(part, name)
