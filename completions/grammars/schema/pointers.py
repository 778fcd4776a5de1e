"""JSON pointers (RFC 6901), as paths into a schema and as references."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

_INDEX = re.compile("[0-9]{1,9}")
"""The places of an array. Python converts no text of more than 4,300 digits."""


def escape(name: str) -> str:
    """Return a key as a part of a pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def get(root: Any, pointer: str) -> Any:
    """Return what stands at a pointer; None if nothing does."""
    value = root
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list):
            index = int(name) if _INDEX.fullmatch(name) else len(value)
            value = value[index] if index < len(value) else None
        else:
            value = value.get(name) if isinstance(value, Mapping) else None
    return value


def resolve(root: Mapping[str, Any], reference: str) -> tuple[str, Any] | None:
    """Return the pointer and the schema that a reference by pointer (`#/...`) leads to, if any."""
    pointer = unquote(reference.removeprefix("#"))
    if not reference.startswith("#") or (pointer and not pointer.startswith("/")):
        return None
    value = get(root, pointer)
    return (pointer, value) if isinstance(value, dict | bool) else None
