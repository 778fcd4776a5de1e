"""Which adapter runs a request, its priority, whose cached prefixes it shares, its own ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from completions.accounts.keys import Principal
from completions.catalog.entries import ModelEntry
from completions.exceptions import APIError, FieldError
from completions.requests.adapters import explain_missing_adapter, find_reference
from completions.requests.context import Context
from completions.requests.fields.base import Field, IntegerField, TextField, expect
from completions.requests.fields.lists import PerPrompt, PerPromptField
from completions.requests.fields.objects import StrictObject

RID_PATTERN = r"[A-Za-z0-9._:-]{1,64}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingSettings:
    adapters: Sequence[str | None]
    """A reference for each prompt."""
    priority: int
    cache_salt: str
    """Requests of one organization share cached prefixes if their salts are equal."""
    rid: str | Sequence[str] | None
    """The client's id of the request, or one for each prompt."""


class AdapterField(Field[str | None]):
    """The name of a LoRA adapter; mistral.rs's `{"generation": ...}` is refused."""

    accepts = {"type": "string"}

    def read(self, data: object, context: Context | None = None) -> str:
        if type(data) is dict and data.keys() == {"generation"}:
            message = "must be an adapter's name, not a generation. GET /v1/models lists the names."
            raise FieldError(message, code="unsupported_value")
        return expect(data, str, "the name of an adapter")


class RoutingFields(StrictObject[Any]):
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
        child=TextField(pattern=RID_PATTERN),
    )


def parse_routing(
    values: RoutingFields,
    principal: Principal,
    entry: ModelEntry,
    adapter: str | None,
    prompts: int,
) -> RoutingSettings:
    """Return the settings of validated fields; `model` names `adapter`. Raises FieldError, and
    APIError for an unknown adapter or a priority above the key's."""
    return RoutingSettings(
        priority=_parse_priority(values.priority, principal),
        rid=_parse_rid(values.rid, prompts),
        adapters=_parse_adapters(values, adapter, entry, principal, prompts),
        cache_salt=_make_cache_salt(values.cache_salt, principal),
    )


def _parse_priority(value: int | None, principal: Principal) -> int:
    maximum = principal.max_priority
    if value is None:
        return min(principal.default_priority, maximum)
    if value > maximum:
        message = (
            f"priority: is {value}; this API key may use at most {maximum}. Leave it out, or ask "
            "your administrator for more."
        )
        raise APIError("permission_denied", message, "priority")
    return value


def _parse_rid(value: PerPrompt | None, prompts: int) -> str | Sequence[str] | None:
    if value is None:
        return None
    if not value.each:
        only: str = value.values[0]
        return only
    rids: Sequence[str] = value.spread(prompts, "rid")
    for index, rid in enumerate(rids):
        if rid in rids[:index]:
            message = f"{rid!r} is the id of an earlier prompt; send different ids."
            raise FieldError(message, f"rid[{index}]")
    return rids


def _parse_adapters(
    values: RoutingFields,
    default: str | None,
    entry: ModelEntry,
    principal: Principal,
    prompts: int,
) -> Sequence[str | None]:
    """Return the adapter of each prompt, from any of the three fields that may name it."""
    by_field: dict[str, Sequence[str | None]] = {}
    if default is not None:
        by_field["model"] = [default] * prompts
    if values.lora_path is not None:
        by_field["lora_path"] = values.lora_path.spread(prompts, "lora_path")
    if values.adapter is not None:
        by_field["adapter"] = [values.adapter] * prompts
    for field, adapters in by_field.items():
        for adapter in adapters:
            if adapter is not None and find_reference(adapter, entry, principal) is None:
                message = f"{field}: {explain_missing_adapter(adapter, entry, principal)}"
                raise APIError("adapter_not_found", message, field)
    (first, chosen), *others = [*by_field.items()] or [("", [None] * prompts)]
    for field, adapters in others:
        if list(adapters) != list(chosen):
            raise FieldError(
                f"conflicts with {first}: they name different adapters. Send only one.", field
            )
    return [name and find_reference(name, entry, principal) for name in chosen]


def _make_cache_salt(value: str | None, principal: Principal) -> str:
    """Return the salt for the prefix cache. Without one, requests share prefixes with other
    requests of the same key."""
    return f"key:{principal.key_id}" if value is None else f"salt:{value}"
