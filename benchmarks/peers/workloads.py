"""What every contender is measured with: one record for each table."""

from dataclasses import dataclass
from typing import Literal

from benchmarks.engine.turns import random_prompts

REGEX = r"[ -~\n]+"
"""Any text in ASCII."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A batch of requests that are submitted at once. Each has ``prompt_tokens`` random tokens, of
    which the first ``shared_tokens`` are the same in all of them. 0: prompts of the schema."""

    batch: int
    prompt_tokens: int
    new_tokens: int
    shared_tokens: int = 0

    def prompts(self, vocab_size: int, seed: int) -> list[list[int]]:
        (shared,) = random_prompts(vocab_size, 1, self.shared_tokens, seed)
        own = self.prompt_tokens - self.shared_tokens
        rest = random_prompts(vocab_size, self.batch, own, seed + 1)
        return [[*shared, *tokens] for tokens in rest]

    def __str__(self) -> str:
        if not self.prompt_tokens:
            return str(self.batch)
        return f"{self.batch} x {self.prompt_tokens:,} + {self.new_tokens}"


@dataclass(frozen=True, slots=True)
class Workload:
    """A table: its name on the command line, what a rate counts, and one row for each shape."""

    name: str
    title: str
    unit: Literal["new tokens/s", "prompt tokens/s", "documents/s"]
    shapes: tuple[Shape, ...]
    constraint: Literal["regex", "schema"] | None = None


def _shapes(prompt_tokens: int, new_tokens: int, batches: tuple[int, ...]) -> tuple[Shape, ...]:
    return tuple(Shape(batch, prompt_tokens, new_tokens) for batch in batches)


_PROMPTS = (Shape(1, 512, 1), Shape(4, 512, 1), Shape(1, 2047, 1), Shape(1, 7000, 1))
WORKLOADS = (
    Workload("64+64", "Short prompts", "new tokens/s", _shapes(64, 64, (1, 8, 32, 64))),
    Workload("512+32", "Long prompts", "new tokens/s", _shapes(512, 32, (1, 8, 32))),
    Workload("1900+64", "Documents as prompts", "new tokens/s", _shapes(1900, 64, (1, 8))),
    Workload("prompts", "Prompts alone", "prompt tokens/s", _PROMPTS),
    Workload(
        "shared",
        "Requests that share their first 1,000 tokens",
        "new tokens/s",
        (Shape(32, 1032, 64, shared_tokens=1000),),
    ),
    Workload(
        "regex",
        "Short prompts, under a regular expression",
        "new tokens/s",
        _shapes(64, 64, (1, 8, 32, 64)),
        "regex",
    ),
    Workload(
        "documents",
        "Documents under a JSON Schema",
        "documents/s",
        tuple(Shape(batch, 0, 256) for batch in (1, 8, 32)),
        "schema",
    ),
)
