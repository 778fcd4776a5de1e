"""The page for trying out models, prompts and constraints."""

import json
from collections.abc import Iterator

import msgspec
from django.http import HttpRequest, HttpResponseBase

from completions.accounts.scope import Viewer, select_managed, select_seen
from completions.admin.base import render_page, require_view
from completions.admin.request_body import load_body
from completions.catalog import model_files
from completions.catalog.model_files import ModelFilesError
from completions.console.acting import ACTS, HEADER
from completions.console.drafts import make_draft
from completions.console.parameters import FIRST, list_parameters
from completions.console.presets import find_preset, list_presets
from completions.models import Adapter, ApiKey, Scope, StoredPrompt, UsageRecord
from completions.requests.fields.base import SchemaField
from completions.requests.fields.constraint import CONSTRAINT_KINDS, ConstraintFields
from completions.requests.fields.objects import StrictObject


@require_view("view_job", for_members=True)
def show_playground(request: HttpRequest) -> HttpResponseBase:
    keys = select_managed(ApiKey.objects.active().select_related("organization"), request.user)
    parameters = list_parameters()
    preset = find_preset(request.GET.get("preset", ""), request.user)
    context = {
        "keys": [
            (key.pk, f"{key.organization.name} / {key.name}", json.dumps(key.allowed_models))
            for key in keys.order_by("organization__name", "name")
            if Scope.INFERENCE in key.scopes
        ],
        "models": list(_list_models(request.user)),
        "constraints": [
            (kind, isinstance(ConstraintFields.fields[kind.field], SchemaField | StrictObject))
            for kind in CONSTRAINT_KINDS
            if kind.label
        ],
        "first": sorted(parameters.pop(""), key=lambda each: FIRST.index(each.name)),
        "groups": parameters,
        "presets": list_presets(request.user),
        "preset": preset,
        "may_run": request.user.has_perm(ACTS),
        "given": preset.draft if preset else _load_job(request.GET.get("job", ""), request.user),
        "header": HEADER,
        "user_id": request.user.pk,
    }
    return render_page(request, "quire/playground.html", "Playground", context)


def _load_job(job_id: str, user: Viewer) -> object:
    """Return the draft of a stored request; None if there is none that the user sees."""
    prompts = StoredPrompt.objects.filter(job_id=job_id, organization__store_prompts=True)
    stored = select_seen(prompts, user).first()
    record = select_seen(UsageRecord.objects.filter(job_id=job_id), user).first()
    if stored is None or record is None:
        return None
    body = load_body(stored, record)
    return None if body is None else msgspec.to_builtins(make_draft(body, record.api_key_id))


def _list_models(user: Viewer) -> Iterator[tuple[str, str, dict[str, bool]]]:
    """Return (name, id of its model, abilities) of each model whose files are present, and of its
    adapters that the user sees."""
    registered: dict[str, list[str]] = {}
    for adapter in select_seen(Adapter.objects.active(), user):
        registered.setdefault(adapter.model, []).append(adapter.name)
    for entry in model_files.load_catalog():
        try:
            files = model_files.load(entry)
        except ModelFilesError:
            continue
        adapters = dict.fromkeys((*entry.adapters, *registered.get(entry.id, ())))
        for name in (entry.id, *(f"{entry.id}:{adapter}" for adapter in adapters)):
            yield name, entry.id, files.abilities
