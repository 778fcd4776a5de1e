"""Which adapter runs a request, how soon, with whose prefixes, and the caller's name for it."""

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

from completions.accounts.keys import Principal
from completions.catalog.entries import ModelEntry
from completions.errors import APIError, FieldError
from completions.requests.fields import (
    IntegerField,
    StrictField,
    StrictSerializer,
    TextField,
    expect,
)
from completions.requests.text_fields import PerPrompt, PerPromptField

_RID = r"[A-Za-z0-9._:-]{1,64}"


class AdapterField(StrictField, serializers.CharField):
    """The name of a LoRA adapter. mistral.rs's `{"generation": ...}` names one by its weights."""

    def to_schema(self) -> dict[str, Any]:
        return {"type": "string"}

    def to_internal_value(self, data: Any) -> str:
        if type(data) is dict and data.keys() == {"generation"}:
            message = (
                "adapters are named here, not addressed by generation. GET /v1/models lists them."
            )
            raise FieldError("unsupported_value", message)
        expect(data, str, "the name of an adapter")
        return str(data)


class RoutingFields(StrictSerializer):
    """`base:adapter` as the model names an adapter too."""

    lora_path = PerPromptField(
        child=AdapterField(), holes=True, required=False,
        help_text="Name of a LoRA adapter of the model, as in `capabilities.adapters` of "
        "GET /v1/models, or an array with one name or null per prompt.",
    )  # fmt: skip
    adapter = AdapterField(required=False, help_text="The same as lora_path, for one name.")
    priority = IntegerField(
        default=0, min_value=-100, max_value=100,
        help_text="Larger goes sooner, as far as the API key may; without it, the API key's own.",
    )  # fmt: skip
    cache_salt = TextField(
        required=False, max_length=256,
        help_text="Share cached prefixes with requests of the organization that name the same; "
        "default: with those of the API key that name none.",
    )  # fmt: skip
    rid = PerPromptField(
        child=TextField(pattern=_RID), required=False,
        help_text="The caller's own id, or one per prompt: 1-64 of A-Z a-z 0-9 . _ : -, not used "
        "before by this API key within 24 hours; echoed as `rid` and `meta_info.id`.",
    )  # fmt: skip


def check_priority(priority: int, principal: Principal) -> None:
    """Raises APIError above the key's band."""
    if priority > principal.max_priority:
        message = (
            f"priority: this API key may ask for at most {principal.max_priority}. Leave it out, "
            "or ask your administrator for more."
        )
        raise APIError("permission_denied", message, "priority")


def salt_of(given: str | None, principal: Principal) -> str:
    """What a worker tells caches apart by, within an organization: no salt names a key's cache."""
    return f"key:{principal.key_id}" if given is None else f"salt:{given}"


def adapters_of(
    validated: Mapping[str, Any], named: str | None, entry: ModelEntry, prompts: int
) -> list[str | None]:
    """The adapter of each prompt, from whichever field names it; `named` is that of `model`.

    Raises FieldError and APIError.
    """
    given: dict[str, list[str | None]] = {}
    if named is not None:
        given["model"] = [named] * prompts
    if validated["lora_path"] is not None:
        given["lora_path"] = validated["lora_path"].spread(prompts, "lora_path")
    if validated["adapter"] is not None:
        given["adapter"] = [validated["adapter"]] * prompts
    for field, adapters in given.items():
        for adapter in adapters:
            if adapter is not None and adapter not in entry.adapters:
                raise _no_adapter(adapter, entry, field)
    (first, chosen), *others = [*given.items()] or [("", [None] * prompts)]
    for field, adapters in others:
        if adapters != chosen:
            raise FieldError("invalid_value", f"names another adapter than {first}.", field)
    return chosen


def _no_adapter(adapter: str, entry: ModelEntry, field: str) -> APIError:
    known = ", ".join(entry.adapters) or "none"
    message = f"{field}: the model {entry.id} has no adapter {adapter[:100]!r}; it has: {known}."
    return APIError("adapter_not_found", message, field)


def check_rids(rid: PerPrompt | None, prompts: int) -> None:
    """Raises FieldError unless there is one per prompt, or one for all, and none twice."""
    if rid is None:
        return
    rids = rid.spread(prompts, "rid") if rid.each else rid.values
    for index, each in enumerate(rids):
        if each in rids[:index]:
            raise FieldError("invalid_value", "names two prompts.", f"rid[{index}]")
