"""The nodes of a structural tag as JSON, the way clients write them."""

from collections.abc import Mapping, Sequence
from typing import Any

JSONNode = dict[str, Any]
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
"""The schema of an object with any content."""


def node(type: str, **fields: Any) -> JSONNode:
    return {"type": type, **fields}


def sequence(*elements: JSONNode) -> JSONNode:
    return node("sequence", elements=list(elements))


def one_of(elements: Sequence[JSONNode]) -> JSONNode:
    return elements[0] if len(elements) == 1 else node("or", elements=list(elements))


def optional(content: JSONNode) -> JSONNode:
    return node("optional", content=content)


def tag(begin: str, content: JSONNode, end: str) -> JSONNode:
    return node("tag", begin=begin, content=content, end=end)


def json_value(
    schema: Mapping[str, Any], place: str, style: str = "json", *, or_object: bool = False
) -> JSONNode:
    """An instance of a schema that stands at a place of the request. Only in a chat's answer.

    With `or_object`, any object where a grammar cannot express the schema.
    """
    return node(
        "json_schema", json_schema=dict(schema), style=style, place=place, or_object=or_object
    )
