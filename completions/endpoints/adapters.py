"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, with vLLM's fields and answers.

Adapters belong to the caller's organization: no other one sees, uses or replaces them.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from django.conf import settings
from django.http import HttpResponse

from completions.accounts import adapters
from completions.accounts.audit import Actor
from completions.accounts.keys import Principal, mask_public_id
from completions.catalog import model_files
from completions.catalog.adapter_store import (
    AdapterError,
    AdapterLimits,
    AdapterNotFoundError,
    copy_adapter,
    find_source,
)
from completions.catalog.entries import ModelEntry
from completions.database.release import run_and_release
from completions.delivery import answers, rate_limits
from completions.delivery.enqueueing import enqueue, new_job
from completions.exceptions import APIError, FieldError
from completions.grammars import Caller
from completions.http.base import APIRequest, AsyncAPIView
from completions.jobs.sharding.shards import name_shard
from completions.models import Adapter, Organization, Scope
from completions.models.adapters import MAX_NAME
from completions.models.timed_ids import new_id
from completions.requests.context import NOTHING_EARLIER
from completions.requests.fields.base import BooleanField, TextField
from completions.requests.fields.objects import StrictObject
from completions.requests.model import choose_model, find_entry
from completions.requests.preparation import find_route, prepare_valid
from completions.responses.completion import ResponseContext

_NAME = TextField(
    "Name of the adapter: letters, digits and ._/- , not that of a model.",
    required=True,
    max_length=MAX_NAME,
    pattern=r"[A-Za-z0-9][A-Za-z0-9._/-]*",
)


class LoadAdapterRequestObject(StrictObject[Any]):
    lora_name = _NAME
    lora_path = TextField(
        "Folder with adapter_config.json and adapter_model.safetensors, in the organization's "
        "folder of QUIRE_ADAPTER_SOURCES: absolute, or relative to it.",
        required=True,
        max_length=4096,
    )
    load_inplace = BooleanField(
        "Replace the adapter of this name. Jobs that are admitted already keep it.", default=False
    )
    base_model_name = TextField(
        "The model that it adapts; by default the one that the key may use, or that has an "
        "adapter of this name."
    )
    is_3d_lora_weight = BooleanField("Only false: weights are matrices.", default=False)


class UnloadAdapterRequestObject(StrictObject[Any]):
    unsupported = {"lora_int_id": "Adapters have no numbers: leave it out."}

    lora_name = _NAME
    base_model_name = TextField("The model that has the adapter, if several do.")


class _AdapterView(AsyncAPIView):
    scope = Scope.INFERENCE

    async def begin(self, request: APIRequest) -> None:
        """Count the request, and refuse keys that are not an admin's."""
        if not request.auth.is_admin:
            message = (
                "This API key may not change adapters. Use a key with the role admin, or ask your "
                "administrator."
            )
            raise APIError("permission_denied", message)
        self.headers.update(await rate_limits.count_request(request.process, request.auth))


class LoadAdapterView(_AdapterView):
    """Register an adapter, or replace one, once a worker has loaded it."""

    async def post(self, request: APIRequest) -> HttpResponse:
        await self.begin(request)
        values = LoadAdapterRequestObject().validate(request.data)
        name, path = values.lora_name, values.lora_path
        if values.is_3d_lora_weight:
            message = "is_3d_lora_weight: only matrices are supported; convert the adapter."
            raise APIError("unsupported_value", message, "is_3d_lora_weight")
        entry = _choose_base(name, values.base_model_name, request.auth)
        _check_name(name, entry, values.load_inplace, request.auth)
        adapter = Adapter(
            organization_id=request.auth.organization_id, model=entry.id, name=name, source=path
        )
        await run_and_release(partial(_store, adapter))
        await _try_out(request, entry, adapter)
        actor, replaces = _name_actor(request.auth), values.load_inplace
        try:
            await run_and_release(partial(adapters.register, adapter, actor, replaces=replaces))
        except adapters.AdapterTakenError as error:
            raise _make_taken(name) from error
        except adapters.TooManyAdaptersError as error:
            message = (
                f"Your organization has {settings.MAX_ADAPTERS} adapters, as many as it may have. "
                "Unload some first."
            )
            raise APIError("storage_limit_exceeded", message, "lora_name") from error
        return _answer(f"Success: LoRA adapter '{name}' added successfully.")


class UnloadAdapterView(_AdapterView):
    """Remove an adapter. Jobs that are admitted already keep it."""

    async def post(self, request: APIRequest) -> HttpResponse:
        await self.begin(request)
        values = UnloadAdapterRequestObject().validate(request.data)
        name, base = values.lora_name, values.base_model_name
        found = await run_and_release(partial(_find_active, request.auth, name, base))
        if len(found) > 1:
            models = ", ".join(adapter.model for adapter in found)
            message = f"base_model_name: several models have this adapter; send one of: {models}."
            raise APIError("missing_required_parameter", message, "base_model_name")
        actor = _name_actor(request.auth)
        if not found or not await run_and_release(partial(adapters.unregister, found[0], actor)):
            message = f"The lora adapter '{name}' cannot be found."
            if any(name in entry.adapters for entry in model_files.load_catalog()):
                message += " An adapter of models.toml is removed there."
            raise APIError("adapter_not_found", message, "lora_name")
        return _answer(f"Success: LoRA adapter '{name}' removed successfully.")


def _choose_base(name: str, given: str | None, principal: Principal) -> ModelEntry:
    """Return the model that an adapter is for. Raises APIError."""
    owners = [model for model, names in principal.adapters.items() if name in names]
    try:
        base = given or (owners[0] if len(owners) == 1 else choose_model(principal, None))
    except FieldError as error:
        error.inside("base_model_name")
        raise error.api_error() from error
    try:
        entry, adapter = find_entry(base, principal)
    except APIError as error:
        error.param = "base_model_name"
        raise
    if adapter is not None:
        message = f"base_model_name: {base[:100]!r} is an adapter; send {entry.id!r}."
        raise APIError("invalid_value", message, "base_model_name")
    return entry


def _check_name(name: str, entry: ModelEntry, replaces: bool, principal: Principal) -> None:
    if model_files.load_catalog().get(name) is not None:
        message = f"lora_name: {name!r} is the id of a model; send another name."
        raise APIError("invalid_value", message, "lora_name")
    if name in entry.adapters:
        message = f"lora_name: models.toml has an adapter {name!r}; send another name."
        raise APIError("invalid_value", message, "lora_name")
    if not replaces and name in principal.adapters.get(entry.id, ()):
        raise _make_taken(name)


def _make_taken(name: str) -> APIError:
    message = (
        f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in "
        "place, set 'load_inplace' to True."
    )
    return APIError("adapter_already_loaded", message, "load_inplace")


def _store(adapter: Adapter) -> None:
    """Copy the folder into the store, and save the version as one to be tried out. Raises
    APIError."""
    organization = Organization.objects.get(pk=adapter.organization_id).name
    root = Path(settings.ADAPTER_SOURCES)
    limits = AdapterLimits(settings.MAX_ADAPTER_BYTES, settings.MAX_LORA_RANK)
    try:
        source = find_source(root, organization, adapter.source)
        copying = copy_adapter(source, root / organization, settings.ADAPTER_STORE, limits)
        with copying as stored:
            adapter.digest, adapter.rank, adapter.bytes = stored.digest, stored.rank, stored.bytes
            adapters.reserve(adapter)
    except adapters.AdapterBytesError as error:
        raise APIError("storage_limit_exceeded", f"lora_path: {error}.", "lora_path") from error
    except AdapterNotFoundError as error:
        raise APIError("adapter_not_found", f"lora_path: {error}.", "lora_path") from error
    except AdapterError as error:
        raise APIError("unsupported_adapter", f"lora_path: {error}.", "lora_path") from error
    except OSError as error:
        raise APIError("storage_full") from error


async def _try_out(request: APIRequest, entry: ModelEntry, adapter: Adapter) -> None:
    """Let a worker load the adapter and compute a token with it: only a worker knows the model's
    layers. Raises APIError."""
    process, owner = request.process, request.auth.organization_id
    principal = replace(request.auth, adapters={entry.id: {adapter.name: adapter.reference}})
    token_id = min(model_files.load(entry).eos_token_ids)
    body = {"model": f"{entry.id}:{adapter.name}", "prompt": [token_id], "max_tokens": 1}
    route = find_route(ResponseContext.path)
    valid = await route.request_type.validate_request(
        process.checks, body, principal, NOTHING_EARLIER
    )
    job_id = name_shard(new_id(ResponseContext.id_prefix), owner, settings.SHARDS)
    prepared = await prepare_valid(process.checks, route, valid, job_id, Caller(owner))
    job = new_job(prepared, "sync", principal)
    await enqueue(process, job)
    await answers.answer(process, prepared.context, job)


def _find_active(principal: Principal, name: str, base: str | None) -> list[Adapter]:
    owned = Adapter.objects.active().filter(organization_id=principal.organization_id, name=name)
    found = owned if base is None else owned.filter(model=base)
    return [adapter for adapter in found if principal.may_use(adapter.model)]


def _name_actor(principal: Principal) -> Actor:
    return Actor(f"key:{mask_public_id(principal.public_id)}")


def _answer(text: str) -> HttpResponse:
    return HttpResponse(text, content_type="text/plain; charset=utf-8")
