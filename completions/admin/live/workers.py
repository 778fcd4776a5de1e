"""The page of engine workers, and the actions on them."""

from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone

from completions.admin.base import acts, page, sees
from completions.admin.display import ago, compact, exact, label, share
from completions.admin.live import state
from completions.jobs import workers as registry
from completions.jobs.workers import WorkerRecord


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
