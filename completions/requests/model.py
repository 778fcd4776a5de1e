"""The field `model`: which model a request names, and whether its key may use it."""

from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

from completions.accounts.keys import Principal
from completions.catalog import model_files
from completions.catalog.entries import ModelEntry
from completions.catalog.model_files import ModelFiles
from completions.errors import APIError
from completions.requests import turns
from completions.requests.fields.base import StrictField, TextField
from completions.requests.fields.objects import StrictSerializer
from completions.requests.fields.routing import no_adapter

_LONG_TEXT = 2000
_MANY = 256
_FAST = frozenset({"prompt", "tokens"})
"""Fields of token ids, which one fast pass checks."""


@dataclass(frozen=True, slots=True)
class RequestedModel:
    """The model that a request names, looked up once."""

    name: str
    """As the request names it: `id` or `id:adapter`."""
    entry: ModelEntry
    adapter: str | None
    files: ModelFiles


def find_entry(name: str, principal: Principal) -> tuple[ModelEntry, str | None]:
    """The served model that is named, and the adapter in `id:adapter`. Raises APIError."""
    served = model_files.served_models()
    entry, adapter = served.get(name), None
    if entry is None and ":" in name:
        base, _, adapter = name.rpartition(":")
        entry = served.get(base)
    if entry is None:
        message = f"The model {name[:100]!r} does not exist. GET /v1/models lists the models."
        raise APIError("model_not_found", message, "model")
    if not (principal.may_use(entry.id) or principal.may_use(name)):
        message = (
            f"This API key may not use the model {name!r}. Ask your administrator, or use one "
            f"of: {', '.join(principal.allowed_models)}."
        )
        raise APIError("permission_denied", message, "model")
    if adapter is not None and adapter not in entry.adapters:
        raise APIError("adapter_not_found", no_adapter(adapter, entry), "model")
    return entry, adapter


class ModelRequestSerializer(StrictSerializer):
    """A body whose `model` comes first, so that later fields are checked against it.

    Raises APIError, never DRF's ValidationError.
    """

    principal: Principal
    """The caller."""
    requested: RequestedModel
    """The value of `model`."""
    model = TextField(
        help_text="Id of a model, as listed by GET /v1/models; `id:adapter` names an adapter too."
    )

    @classmethod
    async def validate_request(cls, data: Any, principal: Principal) -> Any:
        """The validated body. A body that takes long is checked in a thread."""
        serializer = cls.of(data, principal)
        if cls.takes_long(data):
            owner = principal.organization_id
            return await turns.current().run(owner, serializer.run_validation, data)
        return serializer.run_validation(data)

    @classmethod
    def of(cls, data: Any, principal: Principal) -> Self:
        """A serializer for one body: a copy, as making one takes as long as the checks."""
        serializer: Self = copy(_declared(cls))
        serializer.initial_data, serializer.principal = data, principal
        return serializer

    @classmethod
    def takes_long(cls, data: Any) -> bool:
        """Whether checking a body could hold the event loop for more than about a millisecond:
        many ids, long texts to tokenize, or many parts of anything else."""
        if type(data) is not dict:
            return False
        prompt = data.get("prompt")
        if type(prompt) is list and len(prompt) > 8 and type(prompt[0]) in (list, str):
            return True
        return len(data) > _MANY or any(
            len(value) > (_LONG_TEXT if type(value) is str else _MANY)
            for name, value in data.items()
            if type(value) in (str, dict) or (type(value) is list and name not in _FAST)
        )

    def field_value(self, field: StrictField, value: Any) -> Any:
        value = field.to_internal_value(value)
        if field.field_name != "model":
            return field.for_model(value, self.requested.files)
        entry, adapter = find_entry(value, self.principal)
        self.requested = RequestedModel(value, entry, adapter, model_files.load(entry))
        return self.requested

    def is_given(self, name: str) -> bool:
        """Whether the body has a value for this field."""
        return self.initial_data.get(name) is not None


@lru_cache
def _declared(cls: type[StrictSerializer]) -> Any:
    """A serializer whose fields are bound. They keep no state, so its copies share them."""
    serializer = cls()
    _ = serializer.by_name, serializer.declaration
    return serializer
