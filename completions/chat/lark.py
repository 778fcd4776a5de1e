"""The pieces of llguidance's Lark syntax that our own grammars are written in.

Marks that are special tokens of the model are referred to by id: text never matches them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from completions.catalog.model_files import ModelFiles
from completions.grammars import Constraint
from completions.grammars.composition import Part

TEXT = "/(?s:.+)/"
"""Any text but none."""
EMPTY = '""'


class UnenforceableError(Exception):
    """A strict schema asks for what a call format cannot enforce."""

    def __init__(self, message: str, place: str) -> None:
        super().__init__(message)
        self.message = message
        self.place = place


@dataclass(frozen=True, slots=True)
class Rules:
    """Lark definitions, and the grammars of clients' schemas that they refer to as `@name`."""

    lark: str
    parts: tuple[Part, ...] = ()


def literal(text: str) -> str:
    """A text as a Lark string."""
    return json.dumps(text, ensure_ascii=False)


def one_of(alternatives: Sequence[str]) -> str:
    return alternatives[0] if len(alternatives) == 1 else f"({' | '.join(alternatives)})"


def schema_part(name: str, schema: Mapping[str, Any], place: str, whitespace: str) -> Part:
    """A JSON Schema that rules refer to as `@name`."""
    return Part(name, Constraint("json_schema", dict(schema), whitespace, place))


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a model's tokens spell marks, and how JSON is written."""

    special_ids: Mapping[str, int] = field(default_factory=dict)
    """Special tokens by their text."""
    num_tokens: int = 0
    eos_token_ids: frozenset[int] = frozenset()
    whitespace: str = "compact"

    @classmethod
    def of(cls, model: ModelFiles, whitespace: str) -> "Spelling":
        added = model.tokenizer.get_added_tokens_decoder()
        return cls(
            {token.content: id for id, token in added.items() if token.special},
            model.tokenizer.get_vocab_size(with_added_tokens=True),
            frozenset(model.eos_token_ids),
            whitespace,
        )

    def mark(self, text: str) -> str:
        """A mark that must come now."""
        token_id = self.special_ids.get(text)
        return literal(text) if token_id is None else f"<[{token_id}]>"

    def until(self, rule: str, text: str) -> str:
        """A rule that is any text up to a mark, with the mark."""
        token_id = self.special_ids.get(text)
        if token_id is not None:
            return f"{rule}: {TEXT}? <[{token_id}]>"
        return f"{rule}[lazy]: /(?s:.*){regex(text)}/"

    def tokens_but(self, excluded: frozenset[int]) -> str:
        """Any one token of the tokenizer, end of sequence and the excluded ones aside."""
        edges = sorted({-1, *self.eos_token_ids, *excluded, self.num_tokens})
        ranges = [
            f"{low + 1}-{high - 1}" for low, high in pairwise(edges)
            if high - low > 1 and high <= self.num_tokens
        ]  # fmt: skip
        return f"<[{','.join(ranges)}]>"

    def stray(self, marks: Sequence[str]) -> str | None:
        """A special token that models now and then write into free text, marks aside."""
        ids = {
            id for text, id in self.special_ids.items()
            if id not in self.eos_token_ids and text not in marks
        }  # fmt: skip
        return f"<[{','.join(map(str, sorted(ids)))}]>" if ids else None


def regex(text: str) -> str:
    """A text as a pattern between slashes."""
    return re.escape(text).replace("/", r"\/")
