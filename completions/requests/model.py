"""Bodies that begin with the model they speak of, and who may name which model."""

from copy import copy
from functools import lru_cache
from typing import Any, Self

from completions.accounts.keys import Principal
from completions.catalog import model_files
from completions.catalog.entries import ModelEntry
from completions.catalog.model_files import ModelFiles
from completions.errors import APIError
from completions.requests import turns
from completions.requests.fields import StrictField, StrictSerializer, TextField

_LONG_TEXT = 2000
_MANY = 256


def find_entry(model_id: str, principal: Principal) -> ModelEntry:
    """The served model that a request names. Raises APIError."""
    return find_adapted(model_id, principal)[0]


def find_adapted(model_id: str, principal: Principal) -> tuple[ModelEntry, str | None]:
    """The served model, and the adapter where the id is `base:adapter`. Raises as find_entry."""
    served = model_files.served_models()
    entry, adapter = served.get(model_id), None
    if entry is None and ":" in model_id:
        base, _, adapter = model_id.rpartition(":")
        entry = served.get(base)
    if entry is None:
        message = (
            f"The model {model_id[:100]!r} does not exist. GET /v1/models lists those that do."
        )
        raise APIError("model_not_found", message, "model")
    if not (principal.may_use(entry.id) or principal.may_use(model_id)):
        message = (
            f"This API key may not use the model {model_id!r}. Ask your administrator, or use one "
            f"of: {', '.join(principal.allowed_models)}."
        )
        raise APIError("permission_denied", message, "model")
    if adapter is not None and adapter not in entry.adapters:
        known = ", ".join(entry.adapters) or "none"
        message = f"The model {entry.id} has no adapter {adapter[:100]!r}; it has: {known}."
        raise APIError("adapter_not_found", message, "model")
    return entry, adapter


def find_model(model_id: str, principal: Principal) -> ModelFiles:
    """The same with the facts of its files. Raises ModelFilesError too."""
    return model_files.load(find_entry(model_id, principal))


class ModelRequestSerializer(StrictSerializer):
    """A body whose `model` stands first, so that later fields are checked against it.

    Fields are bound once per class: they keep no state. Raises APIError, never ValidationError.
    """

    principal: Principal
    """The caller."""
    model = TextField(
        help_text="Id of a model, as listed by GET /v1/models; `id:adapter` names an adapter too."
    )

    @classmethod
    async def validate_request(cls, data: Any, principal: Principal) -> dict[str, Any]:
        """The validated body; a large batch is checked in a thread."""
        serializer = cls.of(data, principal)
        if _takes_long(data):
            owner = principal.organization_id
            return await turns.current().run(owner, serializer.run_validation, data)
        return serializer.run_validation(data)

    @classmethod
    def of(cls, data: Any, principal: Principal) -> Self:
        """For one body. To make one anew would take as long as its checks."""
        serializer: Self = copy(_declared(cls))
        serializer.initial_data, serializer.principal = data, principal
        return serializer

    def field_value(self, field: StrictField, value: Any, validated: dict[str, Any]) -> Any:
        value = field.to_internal_value(value)
        if "model" not in validated:
            self.entry, self.named_adapter = find_adapted(value, self.principal)
            self.files = model_files.load(self.entry)
            return value
        return field.for_model(value, self.files)


_IDS = frozenset({"prompt", "tokens"})
"""Whose check is one fast pass."""


def _takes_long(data: Any) -> bool:
    """Whether checking a body could hold the event loop for more than about a millisecond: many
    ids, long texts to tokenize, many parts of anything else."""
    if type(data) is not dict:
        return False
    prompt = data.get("prompt")
    if type(prompt) is list and len(prompt) > 8 and type(prompt[0]) in (list, str):
        return True
    return len(data) > _MANY or any(
        len(value) > (_LONG_TEXT if type(value) is str else _MANY)
        for name, value in data.items()
        if type(value) in (str, dict) or (type(value) is list and name not in _IDS)
    )


@lru_cache
def _declared(cls: type[StrictSerializer]) -> Any:
    serializer = cls()
    _ = serializer.by_name, serializer.declaration  # which its copies share
    return serializer
