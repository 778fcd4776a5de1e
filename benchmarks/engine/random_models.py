"""Llama models of known shapes with random weights, and their tokenizers and engines: no
download."""

from dataclasses import dataclass
from itertools import islice, product
from string import ascii_letters, digits, punctuation
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from workers.engine.backends.device import adapt, choose_backend
from workers.engine.build import compose_engine
from workers.engine.checkpoints.loader import wrap_model
from workers.engine.config import EngineConfig
from workers.engine.engine import Engine

END = "<|end|>"


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Llama model, in the order in which papers give them."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool
    max_model_len: int = 8192

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def layer_parameters(self) -> int:
        """Parameters in the matrices of all layers, which every token uses."""
        attention = 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def head_parameters(self) -> int:
        """Parameters in the output layer, which only sampled tokens use."""
        return self.hidden * self.vocabulary

    def kv_bytes(self, num_tokens: int, itemsize: int) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * num_tokens * itemsize


SHAPES = {
    "tiny": Shape(2, 64, 96, 4, 2, 400, tied=False, max_model_len=512),
    "135m": Shape(30, 576, 1536, 9, 3, 49152, tied=True),
    "1b": Shape(16, 2048, 8192, 32, 8, 128256, tied=True),
    "8b": Shape(32, 4096, 14336, 32, 8, 128256, tied=False),
}
"""135m is the shape of SmolLM2; 1b and 8b are shapes of Llama 3."""


def make_model(
    shape: Shape, dtype: torch.dtype, device: torch.device, attention: str, scale: float = 0.02
) -> Any:
    """Return a model whose weights depend only on the shape and the device's generator, seeded with
    0."""
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.max_model_len,
        tie_word_embeddings=shape.tied,
        initializer_range=scale,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    with torch.device(device):
        auto: Any = AutoModelForCausalLM
        model = auto.from_config(config, dtype=dtype, attn_implementation=attention)
    return model.eval()


def make_tokenizer(size: int) -> Any:
    """Return a byte-level tokenizer of ``size`` tokens: the end token, all bytes, then pairs,
    triples and quadruples of printable characters, so that a mask has as many bits as a real
    one."""
    tokens = [END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    printable = ascii_letters + digits + punctuation
    merges: list[tuple[str, str]] = []
    for length in (2, 3, 4):
        missing = max(0, size - len(tokens))
        texts = list(islice(map("".join, product(printable, repeat=length)), missing))
        tokens += texts
        merges += [(text[:-1], text[-1]) for text in texts]
    vocabulary = {token: i for i, token in enumerate(tokens[:size])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=tokenizer, eos_token=END)


def make_engine(
    shape: Shape, device: str, dtype: str, max_num_seqs: int, **settings: Any
) -> Engine:
    """Return an engine over a random model, with steps of up to 8,192 tokens by default."""
    budget = {"max_num_batched_tokens": max(8192, max_num_seqs + 1)}
    config = EngineConfig(
        device=device, dtype=dtype, max_num_seqs=max_num_seqs, **{**budget, **settings}
    )
    config = adapt(config)
    backend = choose_backend(torch.device(config.device))
    # Drawn on the CPU for the tiny model, whose weights must be the same on both devices.
    draw_on = torch.device("cpu" if shape is SHAPES["tiny"] else config.device)
    scale = 0.3 if shape is SHAPES["tiny"] else 0.02
    drawn_in = getattr(torch, "bfloat16" if config.is_rounded else dtype)
    model = make_model(shape, drawn_in, draw_on, backend.attention, scale)
    loaded = wrap_model(model, make_tokenizer(shape.vocabulary), backend, config)
    return compose_engine(loaded, config)
