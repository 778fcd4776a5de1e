"""The sidebar and the search box."""

from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.core.paginator import InvalidPage
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse

from completions.accounts.scope import is_confined, select_seen
from completions.admin.base import SearchResult
from completions.admin.requests import find_job
from completions.models import ApiKey, Batch, File, Organization
from completions.models.organizations import parse_public_id

Item = dict[str, object]

# The sidebar -------------------------------------------------------------------------------------


def make_items(request: HttpRequest) -> list[Item]:
    """Return groups of links; unfold hides links that the user has no permission for."""
    return [
        _make_group(
            _make_link("Dashboard", "monitoring", "admin:index", operators=True),
            _make_link("Usage", "bar_chart", "operations:usage", "completions.view_usagehour"),
        ),
        _make_group(
            _make_link("Live jobs", "bolt", "operations:live", "completions.view_job"),
            _make_table("Requests", "receipt_long", "usagerecord"),
            _make_table("Batches", "stacks", "batch"),
            _make_table("Files", "draft", "file"),
            _make_table("Sessions", "forum", "session"),
            _make_link("Playground", "experiment", "console:playground", "completions.view_job"),
            title="Work",
        ),
        _make_group(
            _make_link(
                "Workers", "memory", "operations:workers", "completions.view_job", operators=True
            ),
            _make_link(
                "Models",
                "model_training",
                "operations:models",
                "completions.view_usagerecord",
                True,
            ),
            title="Engine",
        ),
        _make_group(
            _make_table("API keys", "key", "apikey"),
            _make_table("Organizations", "apartment", "organization"),
            _make_table("Members", "badge", "membership"),
            _make_table("Webhooks", "webhook", "webhookendpoint"),
            _make_table("Deliveries", "outbox", "webhookdelivery"),
            _make_table("Hourly usage", "table_rows", "usagehour"),
            _make_table("Refusals", "block", "refusal"),
            _make_table("Wrong keys", "key_off", "wrongkey"),
            _make_table("Audit trail", "history", "auditentry"),
            title="Access",
        ),
        _make_group(
            _make_table("Users", "person", "user", app="auth"),
            _make_table("Roles", "group", "group", app="auth"),
            title="Admin",
        ),
    ]


def _make_group(*links: Item, title: str = "") -> Item:
    return {"title": title, "separator": bool(title), "items": links}


def _make_link(
    title: str, icon: str, view: str, permission: str = "", operators: bool = False
) -> Item:
    def is_shown(request: HttpRequest) -> bool:
        if operators and is_confined(request.user):
            return False
        return not permission or request.user.has_perm(permission)

    return {"title": title, "icon": icon, "link": reverse(view), "permission": is_shown}


def _make_table(title: str, icon: str, model: str, app: str = "completions") -> Item:
    return _make_link(title, icon, f"admin:{app}_{model}_changelist", f"{app}.view_{model}")


def start(request: HttpRequest) -> HttpResponseBase:
    """Show operators the dashboard of the whole service, and members their usage."""
    if is_confined(request.user):
        return redirect("operations:usage")
    response: HttpResponseBase = admin.site.index(request)
    return response


# The search box ----------------------------------------------------------------------------------

_MOST = 8


def search(request: HttpRequest) -> HttpResponseBase:
    """Return Unfold's page of matches. For a page beyond the last match, Unfold raises an error."""
    site: Any = admin.site
    try:
        response: HttpResponseBase = site.search(request)
    except InvalidPage as error:
        raise Http404(str(error)) from error
    return response


def find(request: HttpRequest, term: str) -> list[SearchResult]:
    """Return the matches for unfold, which lowercases `term`; the query string keeps its case."""
    typed = request.GET.get("s", term).strip()
    return [*_find_requests(request, typed), *_find_rows(request, typed)]


def _find_requests(request: HttpRequest, typed: str) -> Iterator[SearchResult]:
    if not request.user.has_perm("completions.view_usagerecord"):
        return
    for job_id, what in find_job(typed, request.user):
        link = reverse("operations:job", args=[job_id])
        yield SearchResult(title=job_id, description=what, link=link, icon="bolt")


def _find_rows(request: HttpRequest, typed: str) -> Iterator[SearchResult]:
    keys = ApiKey.objects.with_secrets([parse_public_id(typed)])
    tables = (
        (ApiKey, Q(name__icontains=typed) | Q(pk__in=keys), "API key", "key"),
        (Organization, Q(name__icontains=typed), "Organization", "apartment"),
        (Batch, Q(id=typed), "Batch", "stacks"),
        (File, Q(id=typed) | Q(filename__icontains=typed), "File", "draft"),
    )
    for model, condition, what, icon in tables:
        name = model._meta.model_name
        if request.user.has_perm(f"completions.view_{name}"):
            rows = select_seen(model._default_manager.filter(condition), request.user)
            for row in rows[:_MOST]:
                link = reverse(f"admin:completions_{name}_change", args=[row.pk])
                yield SearchResult(title=str(row), description=what, link=link, icon=icon)
