"""The LoRA adapters that a key may name: those of models.toml, and those that its organization has
registered."""

from collections.abc import Mapping

from completions.accounts.keys import Principal
from completions.catalog.entries import ModelEntry

_NONE: Mapping[str, str] = {}


def list_adapters(entry: ModelEntry, principal: Principal) -> list[str]:
    """Return the names of a model's adapters."""
    return list(dict.fromkeys((*entry.adapters, *principal.adapters.get(entry.id, _NONE))))


def find_reference(name: str, entry: ModelEntry, principal: Principal) -> str | None:
    """Return how a job names an adapter; None if there is no such adapter. A name in models.toml
    means the adapter there."""
    if name in entry.adapters:
        return name
    return principal.adapters.get(entry.id, _NONE).get(name)


def explain_missing_adapter(name: str, entry: ModelEntry, principal: Principal) -> str:
    """Return the message about an adapter that the model does not have."""
    names = ", ".join(list_adapters(entry, principal)) or "none"
    return f"The model {entry.id} has no adapter {name[:100]!r}; it has: {names}."
