"""JSON pointers (RFC 6901) into a schema."""

import re
from collections.abc import Mapping

_INDEX = re.compile("[0-9]{1,9}")
"""The places of an array. Python converts no text of more than 4,300 digits."""


def escape(name: str) -> str:
    """Return a key as a part of a pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def get(root: object, pointer: str) -> object:
    """Return what stands at a pointer; None if nothing does."""
    value: object = root
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list):
            index = int(name) if _INDEX.fullmatch(name) else len(value)
            value = value[index] if index < len(value) else None
        else:
            value = value.get(name) if isinstance(value, Mapping) else None
    return value
