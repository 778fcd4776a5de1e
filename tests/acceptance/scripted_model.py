"""A model folder with prepared answers, for tests for which the demo model is too weak.

A GPT-2 without any attention: its position embeddings alone say which token comes next, one byte
each. The chat template turns the user's message, a script's name, into a prompt as long as the
place where that script begins. It runs on the real engine, under real grammars.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

END, THINK, THOUGHT = "<|end|>", "<think>", "</think>"
ROOM = 320
"""Positions of one script, in tokens."""
_WIDTH = 320
"""The width of the model's vectors, which is more than the number of tokens."""
_TEMPLATE = """\
{%- set scripts = SCRIPTS -%}
{%- set last = messages | selectattr('role', 'equalto', 'user') | list | last -%}
{{ 'x' * (ROOM * scripts.index(last.content)) }}{{ '!' }}"""


def save_scripted_model(folder: Path, scripts: Mapping[str, str]) -> Path:
    """Write a model whose answers are ``scripts``: texts by name, which may have special tokens."""
    tokenizer = _tokenizer()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)
    wrapped.save_pretrained(folder)
    template = _TEMPLATE.replace("SCRIPTS", json.dumps(list(scripts))).replace("ROOM", str(ROOM))
    (folder / "chat_template.jinja").write_text(template)
    config = GPT2Config(
        vocab_size=tokenizer.get_vocab_size(),
        n_positions=ROOM * len(scripts),
        n_embd=_WIDTH, n_layer=1, n_head=5, n_inner=8,
        eos_token_id=wrapped.eos_token_id, bos_token_id=wrapped.eos_token_id,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for weights in model.parameters():
            weights.zero_()
        model.transformer.ln_f.weight.fill_(1.0)
        model.lm_head.weight.copy_(torch.eye(config.vocab_size, _WIDTH) * 2)
        for number, text in enumerate(scripts.values()):
            tokens = [*tokenizer.encode(text).ids, wrapped.eos_token_id]
            assert len(tokens) < ROOM, len(tokens)
            for place, token in enumerate(tokens, start=ROOM * number):
                model.transformer.wpe.weight[place, token] = 1.0
    model.to(torch.float32).save_pretrained(folder)
    return folder


def _tokenizer() -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text) for text in (END, THINK, THOUGHT)])
    return tokenizer
