"""Prompts that ask for customer records, and the JSON schema of a record."""

import json
from itertools import count
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

SCHEMA = Path(__file__).with_name("record_schema.json").read_text()
_NAMES = ("Ada", "Grace", "Alan", "Edsger", "Barbara", "Donald", "Frances", "Niklaus")


def schema_grammar(schema: dict[str, Any]) -> str:
    """Return the grammar of a JSON schema's instances without optional whitespace."""
    compact = {**schema, "x-guidance": {"whitespace_flexible": False}}
    return json.dumps({"grammars": [{"json_schema": compact}]})


def chat_prompt(tokenizer: Any, content: str) -> list[int]:
    """Return the token ids of a conversation with one message, up to the model's answer."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


class RecordPrompts:
    """Chat prompts, each of which asks for a different record."""

    def __init__(self, model: str | Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model)
        self._numbers = count()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def take(self, batch: int) -> list[list[int]]:
        return [self._prompt(next(self._numbers)) for _ in range(batch)]

    def _prompt(self, number: int) -> list[int]:
        name = _NAMES[number % len(_NAMES)]
        content = f"Write a JSON customer record for {name} number {number}."
        return chat_prompt(self.tokenizer, content)
