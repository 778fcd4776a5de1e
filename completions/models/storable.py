"""JSON that SQL can hold: PostgreSQL takes every character but U+0000."""

from typing import Any

SHOWN = "\N{SYMBOL FOR NULL}"


def without_nul(value: Any) -> Any:
    """The same JSON value with a visible sign for each U+0000. For what is told about a request:
    where it is to be run as it is, it is refused instead."""
    if isinstance(value, str):
        return value.replace("\0", SHOWN)
    if isinstance(value, dict):
        return {without_nul(name): without_nul(each) for name, each in value.items()}
    if isinstance(value, list):
        return [without_nul(each) for each in value]
    return value
