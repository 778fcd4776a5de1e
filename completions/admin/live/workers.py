"""The page of engine workers, and the actions on them."""

from collections.abc import Sequence
from datetime import timedelta

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone

from completions.admin.base import render_page, require_change, require_view
from completions.admin.display import (
    format_ago,
    format_compact,
    format_exact,
    format_share,
    make_label,
)
from completions.admin.live import state
from completions.jobs import workers as registry
from completions.jobs.sharding.shards import run_each
from completions.jobs.workers import WorkerRecord

_LAST = (
    "No other worker takes jobs of {}: its requests get 503 until one does, and background jobs "
    "and batches wait. Drain this worker?"
)


@require_view("view_job")
def list_workers(request: HttpRequest) -> HttpResponseBase:
    live = state.read()
    context = {
        "live": live,
        "workers": [_make_row(worker, _is_last(worker, live.workers)) for worker in live.workers],
        "may_act": request.user.has_perm("completions.change_job"),
    }
    return render_page(request, "quire/workers.html", "Workers", context)


def _is_last(worker: WorkerRecord, workers: Sequence[WorkerRecord]) -> bool:
    """Whether no other worker takes jobs of the same model."""
    others = (each for each in workers if each.model == worker.model and each is not worker)
    return not any(each.accepting for each in others)


def _make_row(worker: WorkerRecord, is_last: bool) -> dict[str, object]:
    facts, slots = worker.facts, state.count_slots(worker)
    now = timezone.now()
    running, blocks = facts.get("running", 0), facts.get("kv_blocks_total", 0)
    return {
        "id": worker.id,
        "model": worker.model,
        "label": make_label(worker.standing),
        "heartbeat": format_ago(now - timedelta(seconds=worker.age), now),
        "jobs": format_exact(facts.get("jobs")),
        "running": running,
        "slots": slots,
        "slots_percent": round(100 * running / slots) if slots else 0,
        "waiting": format_exact(facts.get("waiting")),
        "memory_percent": round(100 * facts.get("kv_blocks_used", 0) / blocks) if blocks else 0,
        "memory": format_share(facts.get("kv_blocks_used", 0), blocks),
        "generated": format_compact(facts.get("generated_tokens")),
        "forced": format_share(facts.get("forced_tokens", 0), facts.get("generated_tokens", 0)),
        "cached": format_share(
            facts.get("prefix_cache_hits", 0), facts.get("prefix_cache_queries", 0)
        ),
        "preemptions": format_exact(facts.get("preemptions")),
        "can_drain": not worker.drain_wanted,
        "question": _LAST.format(worker.model) if is_last else "",
    }


@require_change("change_job")
def drain(request: HttpRequest, worker_id: str) -> HttpResponseBase:
    with state.open_shards() as shards:
        run_each(shards, lambda store: registry.drain(store, worker_id))
    messages.success(
        request,
        f"{worker_id} finishes its jobs and takes no new ones. Stop it once its state is drained.",
    )
    return redirect("operations:workers")


@require_change("change_job")
def resume(request: HttpRequest, worker_id: str) -> HttpResponseBase:
    with state.open_shards() as shards:
        run_each(shards, lambda store: registry.resume(store, worker_id))
    messages.success(request, f"{worker_id} takes jobs again within seconds.")
    return redirect("operations:workers")
