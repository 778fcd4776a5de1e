"""The nodes of a structural tag as JSON, the way clients write them."""

from collections.abc import Mapping, Sequence
from typing import Any

JSONNode = dict[str, Any]
ANY_OBJECT: Mapping[str, object] = {"type": "object"}
"""The schema of an object with any content."""


def make_node(type: str, **fields: object) -> JSONNode:
    return {"type": type, **fields}


def make_text(text: str) -> JSONNode:
    return make_node("const_string", value=text)


def make_sequence(*elements: JSONNode) -> JSONNode:
    """Return all elements in order; without elements, the empty text."""
    return make_node("sequence", elements=list(elements)) if elements else make_text("")


def make_choice(elements: Sequence[JSONNode]) -> JSONNode:
    return elements[0] if len(elements) == 1 else make_node("or", elements=list(elements))


def make_optional(content: JSONNode) -> JSONNode:
    return make_node("optional", content=content)


def make_tag(begin: str, content: JSONNode, end: str) -> JSONNode:
    return make_node("tag", begin=begin, content=content, end=end)


def make_json_value(
    schema: Mapping[str, object],
    path: str,
    style: Mapping[str, object] | None,
    *,
    or_object: bool,
) -> JSONNode:
    """Return an instance of a schema that stands at a place of the request. Only in a chat's
    answer.

    `style` has the fields of a Style or of Literals; None for JSON. With `or_object`, any object
    where a grammar cannot express the schema.
    """
    return make_node(
        "json_schema", json_schema=dict(schema), style=style, place=path, or_object=or_object
    )
