"""The page of open jobs, and the actions on jobs."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone

from completions.admin.base import acts, page, sees
from completions.admin.display import NONE, compact, label, seconds
from completions.admin.live import state
from completions.jobs import operate
from completions.jobs.record import JobRecord
from completions.models import ApiKey

_SHOWN = 200
"""The number of open jobs shown on the page."""


@sees("view_job")
def open_jobs(request: HttpRequest) -> HttpResponseBase:
    now_live = state.read()
    wanted = request.GET.get("state", "")
    found = [job for job in now_live.jobs if wanted in ("", job.state)]
    shown = found[:_SHOWN]
    keys = ApiKey.objects.select_related("organization").in_bulk({j.api_key_id for j in shown})
    states = [
        (name, name.capitalize(), sum(job.state == name for job in now_live.jobs))
        for name in ("running", "queued")
    ]
    context = {
        "live": now_live,
        "rows": [_job_row(job, keys.get(job.api_key_id)) for job in shown],
        "hidden": len(found) - len(shown) + now_live.open_in_all - len(now_live.jobs),
        "states": [("", "All", len(now_live.jobs)), *states],
        "wanted": wanted,
        "may_act": request.user.has_perm("completions.change_job"),
    }
    return page(request, "quire/live.html", "Live jobs", context)


def _job_row(job: JobRecord, key: ApiKey | None) -> dict[str, Any]:
    now = timezone.now().timestamp()
    running = now - job.started if job.started else None
    return {
        "id": job.id,
        "state_label": label("cancelling" if job.cancelling else job.state),
        "model": job.model,
        "kind": job.kind,
        "key": key.name if key else "deleted",
        "organization": key.organization.name if key else "",
        "waited": seconds((job.started or now) - job.created),
        "running": seconds(running),
        "tokens": f"{compact(job.prompt_tokens)} / {compact(job.generated)}",
        "rate": f"{compact(job.generated / running)}/s" if running and job.generated else NONE,
        "worker": job.worker,
        "attempt": job.attempt,
    }


@acts("change_job")
def cancel(request: HttpRequest, job_id: str) -> HttpResponseBase:
    """Cancel a job: at once while it is queued, at the worker's next step while it runs."""
    with state.store() as store:
        was = operate.cancel(store, job_id)
    if was in ("queued", "running"):
        messages.success(request, f"{job_id} was {was} and is cancelled.")
    else:
        _warn_of_end(request, job_id, was)
    return redirect("operations:job", job_id)


@acts("change_job")
def requeue(request: HttpRequest, job_id: str) -> HttpResponseBase:
    """Queue a job again, for example if its worker is stuck or its message was lost."""
    with state.store() as store:
        was = operate.requeue(store, job_id)
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
