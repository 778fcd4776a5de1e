"""What the playground's form holds: kept in the browser, in presets, or made of a job's request."""

import json
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from completions.console.parameters import PLAIN, list_parameters, write_value
from completions.requests.fields.constraint import CONSTRAINT_KINDS


class Message(Struct, forbid_unknown_fields=True):
    role: str
    content: str
    more: str = ""
    """Further fields of the message, as a JSON object."""


class Side(Struct, forbid_unknown_fields=True):
    """One of up to two requests that are compared."""

    model: str
    kind: str = ""
    """The field of the constraint; empty for none."""
    texts: dict[str, str] = field(default_factory=dict)
    """The constraint's text by field."""
    only_checks: bool = False
    """Whether answers are checked against the constraint, which is not sent."""


class Draft(Struct, forbid_unknown_fields=True):
    sides: list[Side]
    key: str = ""
    """The number of the API key."""
    mode: Literal["messages", "tokens", "text"] = "messages"
    messages: list[Message] = field(default_factory=list)
    prompts: dict[str, str] = field(default_factory=dict)
    """Of the modes `tokens` and `text`."""
    values: dict[str, str] = field(default_factory=dict)
    """The texts of the parameters' inputs that are not empty."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.sides) <= 2:
            raise ValueError("a draft has one or two sides")


def read_draft(document: bytes) -> Draft:
    """Read what the page sends. Raises ValueError."""
    try:
        return msgspec.json.decode(document, type=Draft)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def make_draft(body: Mapping[str, Any], key_id: int) -> Draft:
    """Return the draft of a body for POST /v1/completions."""
    side = Side(model=body["model"])
    for kind in CONSTRAINT_KINDS:
        if kind.label and (value := body.get(kind.field)) is not None:
            is_text = isinstance(value, str)
            text = value if is_text else json.dumps(value, ensure_ascii=False, indent=2)
            side.kind, side.texts = kind.field, {kind.field: text}
    values = {
        each.key: write_value(each, body[each.name])
        for group in list_parameters().values()
        for each in group
        if PLAIN in each.routes and each.name in body
    }
    prompts = {"tokens": json.dumps(body["prompt"])}
    return Draft([side], key=str(key_id), mode="tokens", prompts=prompts, values=values)
