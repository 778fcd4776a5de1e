"""The page for trying out a model, a prompt and a constraint."""

import json
from collections.abc import Iterator

from django.http import HttpRequest, HttpResponseBase

from completions.accounts.scope import Viewer, select_managed, select_seen
from completions.admin.base import render_page, require_view
from completions.admin.request_body import load_body
from completions.catalog import model_files
from completions.catalog.model_files import ModelFilesError
from completions.console.acting import ACTS, HEADER
from completions.models import Adapter, ApiKey, Scope, StoredPrompt, UsageRecord
from completions.requests.fields.base import SchemaField
from completions.requests.fields.constraint import CONSTRAINT_KINDS, ConstraintFields
from completions.requests.fields.objects import StrictObject


@require_view("view_job", for_members=True)
def show_playground(request: HttpRequest) -> HttpResponseBase:
    keys = select_managed(ApiKey.objects.active().select_related("organization"), request.user)
    context = {
        "keys": [
            (key.pk, f"{key.organization.name} / {key.name}")
            for key in keys.order_by("organization__name", "name")
            if Scope.INFERENCE in key.scopes
        ],
        "models": list(_list_models(request.user)),
        "constraints": [
            (kind, isinstance(ConstraintFields.fields[kind.field], SchemaField | StrictObject))
            for kind in CONSTRAINT_KINDS
            if kind.label
        ],
        "may_run": request.user.has_perm(ACTS),
        "given": _load_request(request.GET.get("job", ""), request.user),
        "header": HEADER,
    }
    return render_page(request, "quire/playground.html", "Playground", context)


def _load_request(job_id: str, user: Viewer) -> dict[str, object] | None:
    """Return the first prompt, the main parameters and the constraint of a stored request."""
    prompts = StoredPrompt.objects.filter(job_id=job_id, organization__store_prompts=True)
    stored = select_seen(prompts, user).first()
    record = select_seen(UsageRecord.objects.filter(job_id=job_id), user).first()
    if stored is None or record is None:
        return None
    body = load_body(stored, record)
    if body is None:
        return None
    prompt = body["prompt"]
    return {
        "model": body["model"],
        "key": record.api_key_id,
        "prompt": prompt[0] if isinstance(prompt[0], list) else prompt,
        **{name: body.get(name) for name in ("max_tokens", "temperature", "top_p", "seed")},
        "constraint": next(
            (
                (name, json.dumps(body[name], ensure_ascii=False, indent=2))
                for name in ("json_schema", "grammar")
                if name in body
            ),
            None,
        ),
    }


def _list_models(user: Viewer) -> Iterator[tuple[str, bool]]:
    """Return (id, has a chat template) for each model whose files are present, and for its adapters
    that the user sees."""
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
            yield name, bool(files.abilities.get("chat"))
