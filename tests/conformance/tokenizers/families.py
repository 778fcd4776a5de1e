"""The families, with the sizes of their usual checkpoints' vocabularies."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from tests.conformance.families.shapes import tiny
from tests.conformance.tokenizers.packages import Package, fetched


@dataclass(frozen=True)
class Family:
    """A tokenizer, and what a tiny model of its family needs."""

    package: Package
    model_type: str
    tokens: int
    """Ids below which each is a token."""
    rows: int
    """Rows of the output layer."""
    ends: tuple[int, ...]
    """The end tokens that the family's configuration names."""
    special: tuple[str, ...]
    """Some tokens without text."""
    added: tuple[str, ...] = ()
    """Some added tokens with text."""
    tool_format: str | None = None
    has_template: bool = True
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return self.package.name

    def save(self, folder: Path) -> Path:
        """Write a random model of one or two narrow layers beside links to the tokenizer."""
        for file in fetched(self.package).iterdir():
            (folder / file.name).symlink_to(file)
        sizes = {
            "vocab_size": self.rows, "hidden_size": 32, "tie_word_embeddings": True,
            "eos_token_id": list(self.ends), "bos_token_id": None, "pad_token_id": None,
        }  # fmt: skip
        torch.manual_seed(0)
        config = tiny(self.model_type, {**sizes, **self.options})
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.save_pretrained(folder)
        return folder


FAMILIES = (
    Family(
        Package(
            "qwen3",
            "5rqQ7FyKhoWNbgzaqEM+3fOi/7LUEEPeIxgATi/Dzga61ByBla3VvYUy20ZiOrjjl/kq0SHXzU4a8/HZ1Y3m7A==",
        ),
        "qwen3", 151_669, 151_936, (151_645, 151_643),
        special=("<|im_start|>",), added=("<think>", "</tool_call>", "<|fim_prefix|>"),
        tool_format="hermes",
    ),
    Family(
        Package(
            "gemma3",
            "C2fNaCBbgpEW9FUgF/M0tLnY82CrXu36zaOWAGCsyP70O1piAUcjF20oe0xCgddPKrwLnk6TgOK1EN7aAgdYSg==",
        ),
        "gemma3_text", 262_145, 262_208, (1, 106),
        special=("<start_of_turn>",), added=("<unused5>", "<b>", "\n\n\n", "▁▁▁▁"),
    ),
    Family(
        Package(
            "llama2",
            "ucgag7ccwcMaleod11ZSxW3lJR9VjhwthGhl3YwW+5kvSU2GellEdgu790C+3Su5nvyWXfpzE0pZtW2gRNL7Ww==",
        ),
        "llama", 32_000, 32_000, (2,), special=("<s>",), has_template=False,
    ),
    Family(
        Package(
            "llama3_1",
            "t4znctvShSQXR7vNoeZcxQ6p06ZrDZsxnx+JxGonc0Yuo4iupvXpIZNs0PeITu83Yws+9sD1jfu9DG5tWjozhg==",
        ),
        "llama", 128_256, 128_256, (128_001, 128_008, 128_009),
        special=("<|start_header_id|>",), tool_format="llama3",
    ),
    Family(
        Package(
            "gptoss",
            "FmB+IOMPn+K4xNOti1sugivIbWpi1Ewm9aeOq0TsBh1NOhcnbkp2kHyEkL3n6ts8KnICxy68siggPOwTaWqPMg==",
        ),
        "gpt_oss", 200_019, 201_088, (200_002, 199_999, 200_012),
        special=("<|channel|>", "<|endofprompt|>"), has_template=False,
    ),
    Family(
        Package(
            "deepseek_v3",
            "Bc7IzlrCh5i8DY8HTNx7eWgW5c+h2TACiG/mzFrB3B8h+7Seylo4Z/JMNrI48g+uMfVEdaiE0nykgBSCJARu7Q==",
        ),
        "deepseek_v3", 128_815, 129_280, (1,),
        special=("<｜begin▁of▁sentence｜>",),  # noqa: RUF001 - the model's spelling
        added=("<｜User｜>", "<｜tool▁calls▁begin｜>"),  # noqa: RUF001
        options={"num_key_value_heads": 4, "head_dim": None},
    ),
)  # fmt: skip
