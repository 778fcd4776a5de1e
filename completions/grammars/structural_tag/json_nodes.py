"""The nodes of a structural tag as JSON, the way clients write them.

The last ones stand only in the tree of a chat's answer.
"""

from collections.abc import Mapping, Sequence
from typing import Any

JSONNode = dict[str, Any]


def const(text: str) -> JSONNode:
    return {"type": "const_string", "value": text}


def sequence(*elements: JSONNode) -> JSONNode:
    return {"type": "sequence", "elements": list(elements)}


def one_of(elements: Sequence[JSONNode]) -> JSONNode:
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": list(elements)}


def optional(content: JSONNode) -> JSONNode:
    return {"type": "optional", "content": content}


def star(content: JSONNode) -> JSONNode:
    return {"type": "star", "content": content}


def text() -> JSONNode:
    return {"type": "any_text"}


def tag(begin: str, content: JSONNode, end: str) -> JSONNode:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def token(id: int) -> JSONNode:
    return {"type": "token", "token": id}


def tokens_without(excluded: int, most: int) -> JSONNode:
    """At most so many tokens, none of which is the excluded one or ends the output."""
    return {"type": "any_tokens", "exclude_tokens": [excluded], "max_tokens": most}


def json_value(schema: Mapping[str, Any], place: str, style: str = "json") -> JSONNode:
    """An instance of a schema that stands at a place of the request."""
    return {"type": "json_schema", "json_schema": schema, "style": style, "place": place}


def mixed_text() -> JSONNode:
    """Characters and special tokens that are no marks."""
    return {"type": "mixed_text"}


def mixed_tags(trigger: str, tags: Sequence[JSONNode], *, only_one: bool) -> JSONNode:
    """The same, with tags in it that begin with the trigger."""
    return {
        "type": "mixed_triggered_tags", "triggers": [trigger], "tags": list(tags),
        "stop_after_first": only_one,
    }  # fmt: skip


def mark(text: str, *, cuts: bool = False) -> JSONNode:
    """A text that does not fuse with its neighbours; if `cuts`, it ends text around it."""
    return {"type": "mark", "value": text, "cuts": cuts}


def constrained() -> JSONNode:
    """What the client's constraint allows."""
    return {"type": "constrained"}
