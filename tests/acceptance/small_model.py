"""A tiny random model with every feature: experts, an adapter, fill-in-the-middle, thinking, tools.
Its text is noise, unless the fields of a request constrain it."""

from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from tests.workers.engine.adapters import save_adapter
from tests.workers.engine.tiny_models import EOS, LLAMA, byte_level_tokenizer

SMALL = "small"
ADAPTER = "polite"
RAISES, POISONS = "raises", "poisons"
"""Custom logit processors that do not work."""
CONTEXT = 512
LAYERS, HIDDEN, EXPERTS_PER_TOKEN = 2, 64, 2
FIM = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
THINK, THOUGHT = "<think>", "</think>"
PRICES = {"prompt": 1.0, "cached_prompt": 0.25, "completion": 4.0}
_TEMPLATE = """\
{%- if loud is defined %}LOUD {% endif -%}
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor -%}
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor -%}
{%- if add_generation_prompt %}assistant:
{%- if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}
{%- endif -%}"""


def small_tokenizer() -> Tokenizer:
    """Make its tokenizer, which is the same every time."""
    tokenizer = byte_level_tokenizer()
    tokenizer.add_special_tokens([AddedToken(text) for text in (*FIM, THINK, THOUGHT)])
    return tokenizer


def save_small_model(folder: Path) -> str:
    """Write the model and its adapter. Returns the tables for models.toml."""
    tokenizer = small_tokenizer()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS)
    wrapped.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(_TEMPLATE)
    eos = wrapped.eos_token_id
    options = {
        **LLAMA, "model_type": "qwen3_moe", "num_hidden_layers": LAYERS, "hidden_size": HIDDEN,
        "num_experts": 4, "num_experts_per_tok": EXPERTS_PER_TOKEN, "moe_intermediate_size": 32,
        "max_position_embeddings": CONTEXT, "vocab_size": tokenizer.get_vocab_size(),
    }  # fmt: skip
    ends = {"bos_token_id": eos, "eos_token_id": eos, "pad_token_id": eos}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**options, **ends), dtype=torch.float32
    )
    model.save_pretrained(folder)
    adapter = save_adapter(folder / ADAPTER, folder)
    prices = "\n".join(f"{kind} = {price}" for kind, price in PRICES.items())
    return f"""
[models.{SMALL}]
path = "{folder}"
dtype = "float32"
max_num_seqs = 64
text_prompts = true
tool_format = "hermes"
think_tags = ["{THINK}", "{THOUGHT}"]
thinking_switch = "enable_thinking"
[models.{SMALL}.adapters]
{ADAPTER} = "{adapter}"
[models.{SMALL}.prices]
{prices}
[models.{SMALL}.logit_processors]
{RAISES} = "tests.acceptance.broken_processors:Raises"
{POISONS} = "tests.acceptance.broken_processors:Poisons"
"""
