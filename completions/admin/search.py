"""The search box: finds requests by id, keys, organizations, batches and files."""

from collections.abc import Iterator

from django.db.models import Q
from django.http import HttpRequest
from django.urls import reverse

from completions.admin.base import SearchResult
from completions.admin.requests import find_job
from completions.models import ApiKey, Batch, File, Organization

_MOST = 8


def find(request: HttpRequest, term: str) -> list[SearchResult]:
    """Return the matches for unfold. It lowercases `term`, so the term is read from the query."""
    typed = request.GET.get("s", term).strip()
    return [*_requests(request, typed), *_rows(request, typed)]


def _requests(request: HttpRequest, typed: str) -> Iterator[SearchResult]:
    if not request.user.has_perm("completions.view_usagerecord"):
        return
    for job_id, what in find_job(typed):
        link = reverse("operations:job", args=[job_id])
        yield SearchResult(title=job_id, description=what, link=link, icon="bolt")


def _rows(request: HttpRequest, typed: str) -> Iterator[SearchResult]:
    public_id = typed.removeprefix("sk-").split("-")[0]
    wanted = (
        (ApiKey, Q(name__icontains=typed) | Q(public_id=public_id), "API key", "key"),
        (Organization, Q(name__icontains=typed), "Organization", "apartment"),
        (Batch, Q(id=typed), "Batch", "stacks"),
        (File, Q(id=typed) | Q(filename__icontains=typed), "File", "draft"),
    )
    for model, condition, what, icon in wanted:
        name = model._meta.model_name
        if request.user.has_perm(f"completions.view_{name}"):
            for row in model._default_manager.filter(condition)[:_MOST]:
                link = reverse(f"admin:completions_{name}_change", args=[row.pk])
                yield SearchResult(title=str(row), description=what, link=link, icon=icon)
