"""Pages about the live state: open jobs, models and engine workers, with the actions on jobs and
workers."""

from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone

from completions.admin import state
from completions.admin.base import acts, page, sees
from completions.admin.dashboard import figures
from completions.admin.dashboard.figures import DAY
from completions.admin.display import NONE, ago, compact, exact, label, money, seconds, share
from completions.catalog import model_files
from completions.catalog.entries import ModelEntry
from completions.catalog.model_files import ModelFilesError
from completions.jobs import operate
from completions.jobs import workers as registry
from completions.jobs.record import JobRecord
from completions.jobs.workers import WorkerRecord
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


# Models ----------------------------------------------------------------------------------------


@sees("view_usagerecord")
def models(request: HttpRequest) -> HttpResponseBase:
    live = state.read()
    used = figures.by_model(DAY, timezone.now())
    rows = [_model_row(entry, live, used.get(entry.id)) for entry in model_files.served_models()]
    return page(request, "quire/models.html", "Models", {"live": live, "models": rows})


def _model_row(entry: ModelEntry, live: state.Live, used: dict[str, Any] | None) -> dict[str, Any]:
    workers = [worker for worker in live.workers if worker.model == entry.id]
    accepting = sum(worker.accepting for worker in workers)
    try:
        files = model_files.load(entry)
    except ModelFilesError as error:
        files, missing = None, str(error)
    else:
        missing = ""
    if not live.reachable:
        standing = "unreachable"
    else:
        standing = "loaded" if accepting else "drained" if workers else "no worker"
    return {
        "id": entry.id,
        "label": label(standing),
        "missing": missing,
        "workers": len(workers),
        "running": sum(int(worker.facts.get("running", 0)) for worker in workers),
        "slots": sum(map(state.slots_of, workers)),
        "queued": sum(job.state == "queued" and job.model == entry.id for job in live.jobs),
        "context": exact(files.max_model_len) if files else NONE,
        "vocabulary": exact(files.vocab_size) if files else NONE,
        "dtype": entry.dtype,
        "adapters": list(entry.adapters),
        "abilities": [n.replace("_", " ") for n, has in files.abilities.items() if has]
        if files
        else [],
        "prices": [(kind.replace("_", " "), f"{price:g}") for kind, price in entry.prices.items()],
        "requests": compact(used["requests"]) if used else "0",
        "tokens": compact(used["tokens"]) if used else "0",
        "cost": money(used["cost_nanos"]) if used else money(0),
    }


# Workers ---------------------------------------------------------------------------------------


@sees("view_job")
def workers(request: HttpRequest) -> HttpResponseBase:
    live = state.read()
    context = {
        "live": live,
        "workers": [_worker_row(worker) for worker in live.workers],
        "may_act": request.user.has_perm("completions.change_job"),
    }
    return page(request, "quire/workers.html", "Workers", context)


def _worker_row(worker: WorkerRecord) -> dict[str, Any]:
    facts, slots = worker.facts, state.slots_of(worker)
    now = timezone.now()
    running, blocks = facts.get("running", 0), facts.get("kv_blocks_total", 0)
    return {
        "id": worker.id,
        "model": worker.model,
        "label": label(worker.standing),
        "heartbeat": ago(now - timedelta(seconds=worker.age), now),
        "jobs": exact(facts.get("jobs")),
        "running": running,
        "slots": slots,
        "slots_percent": round(100 * running / slots) if slots else 0,
        "waiting": exact(facts.get("waiting")),
        "memory_percent": round(100 * facts.get("kv_blocks_used", 0) / blocks) if blocks else 0,
        "memory": share(facts.get("kv_blocks_used", 0), blocks),
        "generated": compact(facts.get("generated_tokens")),
        "forced": share(facts.get("forced_tokens", 0), facts.get("generated_tokens", 0)),
        "cached": share(facts.get("prefix_cache_hits", 0), facts.get("prefix_cache_queries", 0)),
        "preemptions": exact(facts.get("preemptions")),
        "can_drain": not worker.drain_wanted,
    }


@acts("change_job")
def drain(request: HttpRequest, worker_id: str) -> HttpResponseBase:
    with state.store() as store:
        registry.drain(store, worker_id)
    messages.success(
        request,
        f"{worker_id} finishes its jobs and takes no new ones. Stop it once its state is drained.",
    )
    return redirect("operations:workers")


@acts("change_job")
def resume(request: HttpRequest, worker_id: str) -> HttpResponseBase:
    with state.store() as store:
        registry.resume(store, worker_id)
    messages.success(request, f"{worker_id} takes jobs again within seconds.")
    return redirect("operations:workers")
