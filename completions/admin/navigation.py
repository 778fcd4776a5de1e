"""The sidebar."""

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest
from django.urls import reverse

Item = dict[str, Any]


def items(request: HttpRequest) -> list[dict[str, Any]]:
    """Return groups of links; unfold hides those that the user has no permission for."""
    return [
        {"items": [_link("Dashboard", "monitoring", "admin:index")]},
        {
            "title": "Work",
            "separator": True,
            "items": [
                _link("Live jobs", "bolt", "operations:live", "completions.view_job"),
                _table("Requests", "receipt_long", "usagerecord"),
                _table("Batches", "stacks", "batch"),
                _table("Files", "draft", "file"),
            ],
        },
        {
            "title": "Engine",
            "separator": True,
            "items": [
                _link("Workers", "memory", "operations:workers", "completions.view_job"),
                _link(
                    "Models", "model_training", "operations:models", "completions.view_usagerecord"
                ),
            ],
        },
        {
            "title": "Access",
            "separator": True,
            "items": [
                _table("API keys", "key", "apikey"),
                _table("Organizations", "apartment", "organization"),
                _table("Usage", "bar_chart", "usagehour"),
                _table("Audit trail", "history", "auditentry"),
            ],
        },
        {
            "title": "Admin",
            "separator": True,
            "items": [
                _table("Users", "person", "user", app="auth"),
                _table("Roles", "group", "group", app="auth"),
            ],
        },
    ]


def _link(title: str, icon: str, view: str, permission: str | None = None) -> Item:
    item: Item = {"title": title, "icon": icon, "link": reverse(view)}
    if permission:
        item["permission"] = _has(permission)
    return item


def _table(title: str, icon: str, model: str, app: str = "completions") -> Item:
    return _link(title, icon, f"admin:{app}_{model}_changelist", f"{app}.view_{model}")


def _has(permission: str) -> Callable[[HttpRequest], bool]:
    return lambda request: bool(request.user.has_perm(permission))
