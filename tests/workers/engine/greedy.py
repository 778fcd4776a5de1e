"""What ``transformers.generate`` says, to compare with."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM


@cache
def _model(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


@torch.inference_mode()
def generate(path: Path, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """Greedy continuation of one prompt alone, with its end-of-sequence token if it comes."""
    ids = torch.tensor([list(prompt)])
    output = _model(path).generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_tokens
    )
    return output[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def prompt(length: int, salt: int = 0) -> tuple[int, ...]:
    """Token ids that differ by position and ``salt``; none of them special."""
    return tuple(5 + (i * i * 7 + i * 13 + salt * 29) % 290 for i in range(length))
