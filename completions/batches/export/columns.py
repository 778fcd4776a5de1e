"""The columns of a batch: those of every export, and one for each property of the schemas."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from completions.batches.counted_fields import find_schema
from completions.batches.export.types import (
    MAX_PARTS,
    ListOf,
    Scalar,
    Struct,
    Type,
    infer_type,
    is_name,
    make_storable,
    unite_types,
)
from completions.exceptions import FieldError
from completions.requests.fields.constraint import CONSTRAINTS, ConstraintFields, find_constraint

WHOLE = "answer"
"""The column of an answer whose schema has no properties."""
MAX_PROPERTIES = 300
"""A row of PostgreSQL has 8,160 bytes, and each column takes up to 24 of them, however long its
value. With more properties, the answer is one column."""
_MAX_BYTES = 63
"""The longest name that PostgreSQL takes."""
BEFORE: Mapping[str, Type] = {"custom_id": Scalar.TEXT}
AFTER: Mapping[str, Type] = {
    "text": Scalar.TEXT,
    "finish_reason": Scalar.TEXT,
    "status_code": Scalar.INTEGER,
    "error_code": Scalar.TEXT,
    "error_message": Scalar.TEXT,
    "prompt_tokens": Scalar.INTEGER,
    "completion_tokens": Scalar.INTEGER,
    "batch_id": Scalar.TEXT,
    "line": Scalar.INTEGER,
}
OTHER_TEXTS = "other_texts"
TOOL_CALLS = "tool_calls"
RECEIPT = "receipt"
OPTIONAL: Mapping[str, Type] = {
    OTHER_TEXTS: ListOf(Scalar.TEXT),
    TOOL_CALLS: Scalar.JSON,
    RECEIPT: Scalar.JSON,
}
OF_EVERY_EXPORT = (*BEFORE, *AFTER)
_OF_POSTGRESQL = ("ctid", "xmin", "cmin", "xmax", "cmax", "tableoid")
"""Every table has these, so no other column may be named like them."""
_TAKEN = {name.casefold() for name in (*OF_EVERY_EXPORT, *OPTIONAL, *_OF_POSTGRESQL)}


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: Type
    property: str | None = None
    """The property of the answer that it shows, if it shows one."""


@dataclass(frozen=True, slots=True)
class Columns:
    all: tuple[Column, ...]
    whole: bool
    """Whether one column shows the whole answer."""

    @property
    def answer_columns(self) -> list[Column]:
        """The columns that answers fill: none without a schema."""
        return [each for each in self.all if each.property is not None or self._is_whole(each)]

    def _is_whole(self, column: Column) -> bool:
        return self.whole and column.name == WHOLE


class Collector:
    """Finds the columns of a batch from its requests, one after another."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()
        """Digests of the constraints so far."""
        self._answers: Type | None = None
        """None without a JSON Schema."""
        self._optional: set[str] = set()

    def see(self, body: object) -> None:
        """Take the body of one request into account. A body that is not an object was refused."""
        if not isinstance(body, dict):
            return
        constraints = _find_constraints(body)
        key = blake2b(json.dumps(constraints).encode(), digest_size=16).digest()
        if key not in self._seen:
            self._seen.add(key)
            self._take(_infer_answer_type(constraints))
        if _has_several_choices(body):
            self._optional.add(OTHER_TEXTS)
        if body.get("tools"):
            self._optional.add(TOOL_CALLS)

    def _take(self, type: Type | None) -> None:
        if type is None or self._answers is None:
            self._answers = self._answers or type
            return
        self._answers = unite_types(self._answers, type)
        # Each line may have a schema of its own.
        if isinstance(self._answers, Struct) and len(self._answers.fields) > MAX_PARTS:
            self._answers = Scalar.JSON

    def columns(self, receipts: bool) -> Columns:
        answers = [] if self._answers is None else _make_answer_columns(self._answers)
        optional = [
            Column(name, type)
            for name, type in OPTIONAL.items()
            if name in self._optional or (receipts and name == RECEIPT)
        ]
        before, after = (
            [Column(name, type) for name, type in part.items()] for part in (BEFORE, AFTER)
        )
        whole = bool(answers) and answers[0].property is None
        return Columns((*before, *answers, *after, *optional), whole)


def _find_constraints(body: Mapping[str, object]) -> dict[str, object]:
    """Return the constraints of a body of any route, as those of a chat."""
    found = {name: body[name] for name in CONSTRAINTS if body.get(name) is not None}
    for name in ("text", "output_config"):
        holder = body.get(name)
        form = holder.get("format") if isinstance(holder, dict) else None
        if isinstance(form, dict) and form.get("type") == "json_schema":
            schema = {"name": "answer", "schema": form.get("schema")}
            found["response_format"] = {"type": "json_schema", "json_schema": schema}
    return found


def _infer_answer_type(constraints: Mapping[str, object]) -> Type | None:
    try:
        constraint = find_constraint(_FIELDS.read(constraints))
        schema = find_schema(constraint)
    except (FieldError, ValueError):  # such a line was refused
        return None
    return None if schema is None else infer_type(schema)


_FIELDS = ConstraintFields()


def _has_several_choices(body: Mapping[str, Any]) -> bool:
    """Return whether a response has several choices."""
    prompt = body.get("prompt")
    texts = isinstance(prompt, list) and len(prompt) > 1 and isinstance(prompt[0], str | list)
    return texts or (isinstance(body.get("n"), int) and body["n"] > 1)


def _make_answer_columns(type: Type) -> list[Column]:
    if not isinstance(type, Struct) or len(type.fields) > MAX_PROPERTIES:
        return [Column(WHOLE, make_storable(type))]
    taken = set(_TAKEN)
    columns = []
    for name, each in type.fields.items():
        column = _choose_name(name, taken)
        taken.add(column.casefold())
        columns.append(Column(column, make_storable(each), name))
    return columns


def _choose_name(name: str, taken: Iterable[str]) -> str:
    """Choose a name for the column of a property that both Parquet's readers and PostgreSQL
    take."""
    readable = "".join(each if each.isprintable() else "_" for each in name)
    if name.casefold() in taken or not is_name(name):
        readable = f"{WHOLE}_{readable}"
    cut, number = readable, 1
    while len(cut.encode()) > _MAX_BYTES or cut.casefold() in taken:
        number += 1
        mark = f"_{number}"
        cut = readable.encode()[: _MAX_BYTES - len(mark)].decode(errors="ignore") + mark
    return cut
