"""A GGUF file as a folder in the transformers layout: config, tokenizer, chat template, and either
the weights or their location.

Weights are converted one tensor at a time; no model is built.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import GenerationConfig, PreTrainedTokenizerFast

from workers.engine.quantized.gguf import GGUFFile

_TOKENIZER = "tokenizer.json"
_TOKENIZER_FILES = (_TOKENIZER, "tokenizer_config.json", "chat_template.jinja")


def convert(source: Path, target: Path, dtype: str) -> None:
    """Write the model of the GGUF file `source` into the folder `target`, in `dtype`.

    Raises OSError, or ValueError for a damaged file and for an unknown architecture or tensor.
    """
    file = GGUFFile(source)
    _write_settings(file.config(), target, dtype)
    number: torch.dtype = getattr(torch, dtype)
    state = {name: stored[...].to(number) for name, stored in file.weights().items()}
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(source, target)


def describe(source: Path, target: Path, dtype: str, named: str) -> None:
    """Write everything but the weights into the folder `target`. Its config says that they are in
    the file `named`, a path as seen from that folder.

    A tokenizer.json beside `source` is preferred to the tokenizer inside it. Raises as `convert`
    does.
    """
    file = GGUFFile(source)
    file.weights()  # raises for names that no module takes
    config = file.config()
    config.quantization_config = {
        "quant_method": "gguf",
        "file": named,
        "type": file.type_name,
    }
    _write_settings(config, target, dtype)
    if (source.parent / _TOKENIZER).is_file():
        for name in _TOKENIZER_FILES:
            if (source.parent / name).is_file():
                shutil.copyfile(source.parent / name, target / name)
    else:
        _write_tokenizer(source, target)


def _write_settings(config: Any, target: Path, dtype: str) -> None:
    config.dtype = dtype
    target.mkdir()
    config.save_pretrained(target)
    GenerationConfig.from_model_config(config).save_pretrained(target)


def _write_tokenizer(source: Path, target: Path) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(source.parent), gguf_file=source.name)
    tokenizer.save_pretrained(target)
