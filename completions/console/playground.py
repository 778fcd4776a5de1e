"""The page for trying out a model, a prompt and a constraint."""

from typing import Any

from django.http import HttpRequest, HttpResponseBase

from completions.admin.base import render_page, require_view
from completions.catalog import model_files
from completions.catalog.model_files import ModelFilesError
from completions.console.acting import ACTS, HEADER
from completions.models import ApiKey, Scope
from completions.requests.fields.base import SchemaField
from completions.requests.fields.constraint import CONSTRAINT_KINDS, ConstraintFields


@require_view("view_job")
def show_playground(request: HttpRequest) -> HttpResponseBase:
    keys = ApiKey.objects.active().select_related("organization")
    context = {
        "keys": [
            (key.pk, f"{key.organization.name} / {key.name}")
            for key in keys.order_by("organization__name", "name")
            if Scope.INFERENCE in key.scopes
        ],
        "models": list(_list_models()),
        "constraints": [
            (kind, isinstance(ConstraintFields.fields[kind.field], SchemaField))
            for kind in CONSTRAINT_KINDS
            if kind.label
        ],
        "may_run": request.user.has_perm(ACTS),
        "header": HEADER,
    }
    return render_page(request, "quire/playground.html", "Playground", context)


def _list_models() -> Any:
    """Return (id, has a chat template) for each model whose files are present, and for its
    adapters."""
    for entry in model_files.load_catalog():
        try:
            files = model_files.load(entry)
        except ModelFilesError:
            continue
        for name in (entry.id, *(f"{entry.id}:{adapter}" for adapter in entry.adapters)):
            yield name, bool(files.abilities.get("chat"))
