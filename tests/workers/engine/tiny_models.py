"""Small random models and a small tokenizer, built from nothing: no download, no checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

EOS = "<|end|>"
TOOL = "<tool>"
_CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    '{"name": "Ada", "age": 36, "tags": ["a", "b"], "ok": true, "none": null}',
    "naïve café, über, 東京, Ελλάδα, emoji 😀😃👩‍👩‍👧",
    "a stop string, another stop string, and the end of the text",
]

VOCAB_SIZE = 400

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}
BLOCK_BYTES = 4 * 2 * 2 * 2 * 16 * 4
"""Of ``LLAMA`` in float32: 4 tokens, 2 layers, key and value, 2 heads of 16."""


def byte_level_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer, as of GPT-2, with an end token and another special one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[EOS, TOOL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def sentencepiece_tokenizer() -> Tokenizer:
    """A tokenizer with word-boundary marks and byte fallback, as of Llama 2."""
    pieces = ["<unk>", EOS, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "▁of"]
    pieces += list("abcdefghijklmnopqrstuvwxyz")
    tokenizer = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([EOS])
    return tokenizer


def save_model(folder: Path, options: Mapping[str, Any] = LLAMA) -> Path:
    """Write a random model and the byte-level tokenizer where ``from_pretrained`` finds them."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level_tokenizer(), eos_token=EOS)
    tokenizer.save_pretrained(folder)
    eos = tokenizer.eos_token_id
    tokens = {"bos_token_id": eos, "eos_token_id": eos, "pad_token_id": eos}
    config = AutoConfig.for_model(**{"vocab_size": VOCAB_SIZE, **tokens, **options})
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder
