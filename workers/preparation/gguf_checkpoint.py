"""A GGUF file as a folder in the transformers layout: config, tokenizer, chat template, and either
the weights or their location.

Weights are converted one tensor at a time; no model is built.
"""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import GenerationConfig, PreTrainedTokenizerFast

from workers.engine.checkpoints.quantized.gguf.file import GGUFFile

_TOKENIZER = "tokenizer.json"
_TOKENIZER_CONFIG, _TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
_TOKENIZER_FILES = (_TOKENIZER, _TOKENIZER_CONFIG, _TEMPLATE)
_END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eot|>",
    "<|end|>",
    "<end_of_turn>",
    "<turn|>",
    "<|end_of_turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "[|endofturn|]",
    "<EOT>",
    "<|return|>",
    "<|call|>",
    "[e~[",
)
"""Tokens with which models end a turn, if their chat template names them: many converters keep the
base model's end token, with which no turn ends."""
_OF_MESSAGES = {"<|end|>": "<|return|>"}
"""Tokens that end only a message of several, in templates that name the other one."""


def convert(source: Path, target: Path, dtype: str) -> None:
    """Write the model of the GGUF file `source` into the folder `target`, in `dtype`.

    Raises OSError, or ValueError for a damaged file and for an unknown architecture or tensor.
    """
    file = GGUFFile(source)
    config = file.config()
    _write_config(config, target, dtype)
    number: torch.dtype = getattr(torch, dtype)
    state = {name: stored[...].to(number) for name, stored in file.weights().items()}
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(source, target)
    _write_generation_config(config, file.end_token_ids, target)


def describe(source: Path, target: Path, dtype: str, named: str) -> None:
    """Write everything but the weights into the folder `target`. Its config says that they are in
    the file `named`, a path as seen from that folder.

    A tokenizer.json beside `source` is preferred to the tokenizer inside it. Raises as `convert`
    does.
    """
    file = GGUFFile(source)
    config = file.config()
    file.weights()  # raises for names that no module takes
    config.quantization_config = {"quant_method": "gguf", "file": named, "type": file.type_name}
    _write_config(config, target, dtype)
    if (source.parent / _TOKENIZER).is_file():
        for name in _TOKENIZER_FILES:
            if (source.parent / name).is_file():
                shutil.copyfile(source.parent / name, target / name)
    else:
        _write_tokenizer(source, target)
    _write_generation_config(config, file.end_token_ids, target)


def _write_config(config: Any, target: Path, dtype: str) -> None:
    config.dtype = dtype
    target.mkdir()
    config.save_pretrained(target)


def _write_generation_config(config: Any, ends: Iterable[int], target: Path) -> None:
    """Write the tokens that end a text: `ends`, and those with which the chat template in `target`
    ends a turn."""
    generation = GenerationConfig.from_model_config(config)
    token_ids = list(dict.fromkeys([*ends, *_turn_ends(target)]))
    generation.eos_token_id = token_ids[0] if len(token_ids) == 1 else token_ids or None
    generation.save_pretrained(target)


def _turn_ends(folder: Path) -> list[int]:
    template = _template(folder)
    named = [mark for mark in _END_OF_TURN if mark in template]
    named = [mark for mark in named if _OF_MESSAGES.get(mark) not in named]
    tokenizer = Tokenizer.from_file(str(folder / _TOKENIZER)) if named else None
    ids = [tokenizer.token_to_id(mark) for mark in named] if tokenizer else []
    return [id for id in ids if id is not None]


def _template(folder: Path) -> str:
    if (folder / _TEMPLATE).is_file():
        return (folder / _TEMPLATE).read_text("utf-8")
    path = folder / _TOKENIZER_CONFIG
    config = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return str(config.get("chat_template") or "")  # one, or several by name


def _write_tokenizer(source: Path, target: Path) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(source.parent), gguf_file=source.name)
    tokenizer.save_pretrained(target)
