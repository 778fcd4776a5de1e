"""The names of groups of usage: of organizations, keys and batches, and of what has no name."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from django.urls import reverse

from completions.admin.usage.scope import Viewer, select_seen
from completions.admin.usage.view_state import Dimension, Value
from completions.models import ApiKey, Batch, Organization

EMPTY = {"adapter": "no adapter", "kind": "not recorded", "batch": "no batch"}
"""What an empty value means, by dimension."""


@dataclass(frozen=True, slots=True)
class Label:
    name: str
    note: str = ""
    page: str = ""
    """The address of its own page."""


def name_groups(group: Dimension, values: Collection[Value], user: Viewer) -> Mapping[Value, Label]:
    """Return a label for each value. Rows that the user may not see have no name."""
    found: Mapping[Value, Label] = {}
    if group.name == "organization":
        rows = select_seen(Organization.objects.all(), user).in_bulk(_pick_ids(values))
        found = {pk: Label(row.name, "", _link(row)) for pk, row in rows.items()}
    elif group.name == "key":
        keys = select_seen(ApiKey.objects.select_related("organization"), user)
        found = {
            pk: Label(key.name, f"{key.organization.name}, sk-{key.public_id}", _link(key))
            for pk, key in keys.in_bulk(_pick_ids(values)).items()
        }
    elif group.name == "batch":
        batches = select_seen(Batch.objects.only("id", "model", "created_at"), user)
        found = {
            pk: Label(str(pk), f"{row.created_at:%b %-d, %H:%M}, {row.model}", _link(row))
            for pk, row in batches.in_bulk([str(value) for value in values if value]).items()
        }
    return {
        value: found.get(value) or Label(str(value) or EMPTY.get(group.name, "none"))
        for value in values
    }


def _pick_ids(values: Collection[Value]) -> list[int]:
    return [value for value in values if isinstance(value, int)]


def _link(row: Organization | ApiKey | Batch) -> str:
    return reverse(f"admin:completions_{row._meta.model_name}_change", args=[row.pk])


def shorten(label: Label, group: Dimension) -> str:
    """Return a name for the legend of a chart. Ids of batches differ in their last characters."""
    return f"…{label.name[-8:]}" if group.name == "batch" and label.page else label.name
