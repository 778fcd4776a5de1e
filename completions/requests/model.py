"""The field `model`: which model a request names, and whether its key may use it."""

from difflib import get_close_matches
from typing import Any, ClassVar, Self

from completions.accounts.keys import Principal
from completions.catalog import model_files
from completions.catalog.entries import ModelEntry
from completions.exceptions import APIError, FieldError
from completions.requests.adapters import (
    explain_missing_adapter,
    find_reference,
    list_adapters,
)
from completions.requests.context import NOTHING_EARLIER, Context, Earlier, RequestedModel
from completions.requests.fair_semaphore import Checks
from completions.requests.fields.base import T, TextField
from completions.requests.fields.objects import StrictObject

DEFAULT_MODEL = "default"
"""The name that clients of SGLang and mistral.rs use for the only model."""
_LONGEST_NAME = 200
"""Characters of a name that is compared with others."""
_LONG_TEXT = 2000
"""Characters of all texts together."""
_MANY = 256
"""Fields and elements together."""
_FAST = frozenset({"prompt", "tokens"})
"""Fields of token ids, which one fast pass checks."""


def find_entry(name: str, principal: Principal) -> tuple[ModelEntry, str | None]:
    """Return the served model that is named, and the adapter in `id:adapter`. Raises APIError."""
    served = model_files.load_catalog()
    entry, adapter = served.get(name), None
    if entry is None and ":" in name:
        base, _, adapter = name.rpartition(":")
        entry = served.get(base)
    elif entry is None and (owner := _find_owner(name, principal)) is not None:
        entry, adapter = owner, name
    if entry is None:
        near = _suggest_name(name, principal)
        hint = f" Did you mean {near!r}?" if near else ""
        message = f"The model {name[:100]!r} does not exist.{hint} GET /v1/models lists the models."
        raise APIError("model_not_found", message, "model")
    full_name = entry.id if adapter is None else f"{entry.id}:{adapter}"
    if not (principal.may_use(entry.id) or principal.may_use(full_name)):
        message = (
            f"This API key may not use the model {name[:100]!r}. Ask your administrator, or use "
            f"one of: {', '.join(principal.allowed_models)}."
        )
        raise APIError("permission_denied", message, "model")
    if adapter is not None and find_reference(adapter, entry, principal) is None:
        message = explain_missing_adapter(adapter, entry, principal)
        raise APIError("adapter_not_found", message, "model")
    return entry, adapter


def _find_owner(adapter: str, principal: Principal) -> ModelEntry | None:
    """Return the only model that has this adapter, for clients of vLLM, where its name alone names
    it."""
    owners = [
        entry
        for entry in model_files.load_catalog()
        if find_reference(adapter, entry, principal) is not None
        and (principal.may_use(entry.id) or principal.may_use(f"{entry.id}:{adapter}"))
    ]
    return owners[0] if len(owners) == 1 else None


def _suggest_name(name: str, principal: Principal) -> str | None:
    """Return the model or adapter that the key may use whose name is most like `name`, in any
    case."""
    if len(name) > _LONGEST_NAME:
        return None
    names = [
        each
        for entry in model_files.load_catalog()
        for each in (entry.id, *(f"{entry.id}:{name}" for name in list_adapters(entry, principal)))
        if principal.may_use(entry.id) or principal.may_use(each)
    ]
    by_lower = {each.lower(): each for each in names}
    near = get_close_matches(name.lower(), by_lower, 1)
    return by_lower[near[0]] if near else None


def choose_model(principal: Principal, name: str | None) -> str:
    """Return the id of the only model that a key may use, for a request that names none, or
    `default`. Raises FieldError where there are several."""
    usable = [entry.id for entry in model_files.load_catalog() if principal.may_use(entry.id)]
    if len(usable) == 1:
        return usable[0]
    names = ", ".join(usable) or "none that this API key may use"
    if name is None:
        message = f"this field is required; the models are: {names}."
        raise FieldError(message, code="missing_required_parameter")
    raise FieldError(f"{name!r} needs a single model; send one of: {names}.")


class ModelRequestObject(StrictObject[T]):
    """A body that names a model, against which its fields are checked. It is read as a T."""

    always_long: ClassVar[bool] = False
    """Whether `is_long` is true whatever the body holds."""
    model = TextField(
        "Id of a model, as listed by GET /v1/models; `id:adapter` names an adapter too, and so "
        "does `adapter` if only one model has it. "
        "`default` is the only model that the API key may use.",
        default=DEFAULT_MODEL,
    )

    @classmethod
    async def validate_request(
        cls, checks: Checks, data: object, principal: Principal, earlier: Earlier = NOTHING_EARLIER
    ) -> T:
        """Return the validated body. A body that takes long is checked in a thread."""
        body = cls()
        if cls.is_long(data):
            owner = principal.organization_id
            return await checks.run(owner, body.validate_for, data, principal, earlier)
        return body.validate_for(data, principal, earlier)

    def validate_for(
        self, data: object, principal: Principal, earlier: Earlier = NOTHING_EARLIER
    ) -> T:
        """Return the value of a whole body that `principal` sent. Raises APIError."""
        try:
            given = self.check_names(data)
            # The model comes first: the other fields are checked against its files.
            model = _find_model(given.get("model"), principal)
            context = Context(principal, model, given, earlier)
            return self.make(self.read_values(given, context), context)
        except FieldError as error:
            raise error.api_error() from error

    def make(self, values: Self, context: Context) -> T:
        """Return the body's value, once the rules between its fields are checked. Raises
        FieldError and APIError."""
        raise NotImplementedError

    @classmethod
    def is_long(cls, data: object) -> bool:
        """Return whether checking a body could hold the event loop for more than about a
        millisecond: many ids, long texts to tokenize, or many parts of anything else."""
        if cls.always_long or type(data) is not dict:
            return cls.always_long
        prompt = data.get("prompt")
        if type(prompt) is list and len(prompt) > 8 and type(prompt[0]) in (list, str):
            return True
        return _is_large([each for name, each in data.items() if not _is_fast(name, each)])


def _find_model(given: object, principal: Principal) -> RequestedModel:
    """Return the model that a body names, or else the only one. Raises FieldError and APIError."""
    name, entry, adapter = find_given(given, principal)
    return RequestedModel(name, entry, adapter, model_files.load(entry))


def find_given(given: object, principal: Principal) -> tuple[str, ModelEntry, str | None]:
    """Return the name, the served model and the adapter that a body's `model` means. Raises
    FieldError and APIError."""
    try:
        name = DEFAULT_MODEL if given is None else TextField().read(given)
        if name == DEFAULT_MODEL and model_files.load_catalog().get(name) is None:
            name = choose_model(principal, None if given is None else name)
    except FieldError as error:
        error.inside("model")
        raise
    return name, *find_entry(name, principal)


def _is_fast(name: str, value: object) -> bool:
    """Return whether a value is token ids, or a list of lists of them."""
    return name in _FAST and type(value) is list and bool(value) and type(value[0]) in (int, list)


def _is_large(value: Any) -> bool:
    """Return whether JSON has long texts or many parts, wherever in it. Looks no further than
    needed."""
    unseen, characters, parts = [value], 0, 0
    while unseen:
        value = unseen.pop()
        if type(value) is str:
            characters += len(value)
        elif type(value) in (dict, list):
            parts += len(value)
            unseen += (value.values() if type(value) is dict else value) if parts <= _MANY else ()
        if characters > _LONG_TEXT or parts > _MANY:
            return True
    return False
