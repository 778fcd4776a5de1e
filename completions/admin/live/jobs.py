"""The page of open jobs, and the actions on jobs."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone

from completions.accounts import audit
from completions.accounts.audit import Actor
from completions.accounts.scope import is_confined, sees_organization
from completions.admin.base import render_page, require_change, require_view
from completions.admin.display import NONE, format_compact, format_seconds, make_label
from completions.admin.job import JOB_CANCELLED, find_key_to_cancel
from completions.admin.live import state
from completions.jobs import operate
from completions.jobs.record import JobRecord
from completions.models import ApiKey

_SHOWN = 200
"""The number of open jobs shown on the page."""


@require_view("view_job", for_members=True)
def list_open_jobs(request: HttpRequest) -> HttpResponseBase:
    now_live = state.read()
    filter_state = request.GET.get("state", "")
    seen = [job for job in now_live.jobs if sees_organization(request.user, job.organization_id)]
    unread = 0 if is_confined(request.user) else now_live.open_in_all - len(now_live.jobs)
    matches = [job for job in seen if filter_state in ("", job.state)]
    page_jobs = matches[:_SHOWN]
    keys = ApiKey.objects.select_related("organization").in_bulk({j.api_key_id for j in page_jobs})
    states = [
        (name, name.capitalize(), sum(job.state == name for job in seen))
        for name in ("running", "queued")
    ]
    context = {
        "live": now_live,
        "rows": [_make_row(job, keys.get(job.api_key_id)) for job in page_jobs],
        "hidden": len(matches) - len(page_jobs) + unread,
        "states": [("", "All", len(seen)), *states],
        "wanted": filter_state,
        "may_act": request.user.has_perm("completions.change_job"),
    }
    return render_page(request, "quire/live.html", "Live jobs", context)


def _make_row(job: JobRecord, key: ApiKey | None) -> dict[str, object]:
    now = timezone.now().timestamp()
    running = now - job.started if job.started else None
    return {
        "id": job.id,
        "state_label": make_label("cancelling" if job.cancelling else job.state),
        "model": job.model,
        "kind": job.kind,
        "key": key.name if key else "deleted",
        "organization": key.organization.name if key else "",
        "waited": format_seconds((job.started or now) - job.created),
        "running": format_seconds(running),
        "tokens": f"{format_compact(job.prompt_tokens)} / {format_compact(job.generated)}",
        "rate": f"{format_compact(job.generated / running)}/s"
        if running and job.generated
        else NONE,
        "worker": job.worker,
        "attempt": job.attempt,
    }


@require_change("change_job", for_members=True)
def cancel(request: HttpRequest, job_id: str) -> HttpResponseBase:
    """Cancel a job: at once while it is queued, at the worker's next step while it runs."""
    key = find_key_to_cancel(job_id, request.user)
    with state.open_shards() as shards:
        was = operate.cancel(shards.find_by_job(job_id), job_id)
    if was in ("queued", "running"):
        if key is not None:
            audit.record_use(Actor.from_user(request.user), key, JOB_CANCELLED, job_id)
        messages.success(request, f"{job_id} was {was} and is cancelled.")
    else:
        _warn_of_end(request, job_id, was)
    return redirect("operations:job", job_id)


@require_change("change_job")
def requeue(request: HttpRequest, job_id: str) -> HttpResponseBase:
    """Queue a job again, for example if its worker is stuck or its message was lost."""
    with state.open_shards() as shards:
        was = operate.requeue(shards.find_by_job(job_id), job_id)
    if was == "running":
        messages.success(
            request, f"{job_id} was taken from its worker. Another continues it within seconds."
        )
    elif was == "queued":
        messages.success(request, f"{job_id} is offered to the workers again within seconds.")
    else:
        _warn_of_end(request, job_id, was)
    return redirect("operations:job", job_id)


def _warn_of_end(request: HttpRequest, job_id: str, was: str | None) -> None:
    messages.warning(request, f"{job_id} has already ended ({was or 'not in Redis'}).")
