"""Makes JSON storable: PostgreSQL text cannot hold U+0000."""

from typing import Any

SHOWN = "\N{SYMBOL FOR NULL}"


def replace_nul(value: object) -> Any:
    """Return the JSON value with U+2400 in place of each U+0000.

    Only for descriptions of a request. A request that must run unchanged is refused instead.
    """
    if isinstance(value, str):
        return value.replace("\0", SHOWN)
    if isinstance(value, dict):
        return {replace_nul(name): replace_nul(each) for name, each in value.items()}
    if isinstance(value, list):
        return [replace_nul(each) for each in value]
    return value
