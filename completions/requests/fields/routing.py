"""Which adapter runs a request, its priority, whose cached prefixes it shares, its own ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from completions.accounts.keys import Principal
from completions.catalog.entries import ModelEntry
from completions.exceptions import APIError, FieldError
from completions.requests.fields.base import (
    Field,
    IntegerField,
    PerPrompt,
    PerPromptField,
    TextField,
    expect,
)
from completions.requests.fields.objects import StrictObject, Values

_RID = r"[A-Za-z0-9._:-]{1,64}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingSettings:
    adapters: Sequence[str | None]
    """One for each prompt."""
    priority: int
    cache_salt: str
    """Requests of one organization share cached prefixes if their salts are equal."""
    rid: str | Sequence[str] | None
    """The client's id of the request, or one for each prompt."""


class AdapterField(Field):
    """The name of a LoRA adapter; mistral.rs's `{"generation": ...}` is refused."""

    accepts = {"type": "string"}

    def read(self, data: Any, model: Any = None) -> str:
        if type(data) is dict and data.keys() == {"generation"}:
            message = "must be an adapter's name, not a generation. GET /v1/models lists the names."
            raise FieldError(message, code="unsupported_value")
        expect(data, str, "the name of an adapter")
        return str(data)


class RoutingFields(StrictObject):
    lora_path = PerPromptField(
        "Name of a LoRA adapter of the model, as in `capabilities.adapters` of "
        "GET /v1/models, or an array with one name or null per prompt.",
        child=AdapterField(),
        holes=True,
    )
    adapter = AdapterField("The same as lora_path, for one name.")
    priority = IntegerField(
        "Larger goes sooner, up to the API key's maximum; without it, the key's own.",
        min_value=-100,
        max_value=100,
    )
    cache_salt = TextField(
        "Share cached prefixes with the organization's requests that have the same salt; "
        "default: with the API key's requests that have none.",
        max_length=256,
    )
    rid = PerPromptField(
        "The client's own id, or one per prompt: 1-64 of A-Z a-z 0-9 . _ : -, not used "
        "before by this API key within 24 hours; echoed as `rid` and `meta_info.id`.",
        child=TextField(pattern=_RID),
    )


def routing_settings(
    values: Values, principal: Principal, entry: ModelEntry, adapter: str | None, prompts: int
) -> RoutingSettings:
    """The settings of validated fields; `model` names `adapter`. Raises FieldError, and APIError
    for an unknown adapter or a priority above the key's."""
    return RoutingSettings(
        priority=_priority(values["priority"], principal),
        rid=_rid(values["rid"], prompts),
        adapters=_adapters(values, adapter, entry, prompts),
        cache_salt=_cache_salt(values["cache_salt"], principal),
    )


def _priority(given: int | None, principal: Principal) -> int:
    most = principal.max_priority
    if given is None:
        return min(principal.default_priority, most)
    if given > most:
        message = (
            f"priority: is {given}; this API key may use at most {most}. Leave it out, or ask your "
            "administrator for more."
        )
        raise APIError("permission_denied", message, "priority")
    return given


def _rid(given: PerPrompt | None, prompts: int) -> str | Sequence[str] | None:
    if given is None:
        return None
    if not given.each:
        only: str = given.values[0]
        return only
    rids: Sequence[str] = given.spread(prompts, "rid")
    for index, rid in enumerate(rids):
        if rid in rids[:index]:
            message = f"{rid!r} is the id of an earlier prompt; send different ids."
            raise FieldError(message, f"rid[{index}]")
    return rids


def _adapters(
    values: Values, named: str | None, entry: ModelEntry, prompts: int
) -> Sequence[str | None]:
    """The adapter of each prompt, from any of the three fields that may name it."""
    given: dict[str, Sequence[str | None]] = {}
    if named is not None:
        given["model"] = [named] * prompts
    if values["lora_path"] is not None:
        given["lora_path"] = values["lora_path"].spread(prompts, "lora_path")
    if values["adapter"] is not None:
        given["adapter"] = [values["adapter"]] * prompts
    for field, adapters in given.items():
        for adapter in adapters:
            if adapter is not None and adapter not in entry.adapters:
                message = f"{field}: {no_adapter(adapter, entry)}"
                raise APIError("adapter_not_found", message, field)
    (first, chosen), *others = [*given.items()] or [("", [None] * prompts)]
    for field, adapters in others:
        if list(adapters) != list(chosen):
            raise FieldError(f"names another adapter than {first}; send one of them.", field)
    return chosen


def no_adapter(adapter: str, entry: ModelEntry) -> str:
    """The message about an adapter that the model does not have."""
    known = ", ".join(entry.adapters) or "none"
    return f"The model {entry.id} has no adapter {adapter[:100]!r}; it has: {known}."


def _cache_salt(given: str | None, principal: Principal) -> str:
    """Without a salt, requests share prefixes with other requests of the same key."""
    return f"key:{principal.key_id}" if given is None else f"salt:{given}"
