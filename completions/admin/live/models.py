"""The page of models: which workers serve each, and how much it was used."""

from typing import Any

from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone

from completions.admin.base import render_page, require_view
from completions.admin.dashboard import figures
from completions.admin.dashboard.figures import DAY
from completions.admin.display import NONE, format_compact, format_exact, format_money, make_label
from completions.admin.live import state
from completions.catalog import model_files
from completions.catalog.entries import ModelEntry
from completions.catalog.model_files import ModelFilesError
from completions.chat.chat_style import list_abilities


@require_view("view_usagerecord")
def list_models(request: HttpRequest) -> HttpResponseBase:
    live = state.read()
    used = figures.sum_by_model(DAY, timezone.now())
    rows = [_make_row(entry, live, used.get(entry.id)) for entry in model_files.load_catalog()]
    return render_page(request, "quire/models.html", "Models", {"live": live, "models": rows})


def _make_row(
    entry: ModelEntry, live: state.Live, used: dict[str, Any] | None
) -> dict[str, object]:
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
    elif entry.id in live.standby and not accepting:
        standing = "on demand"
    else:
        standing = "loaded" if accepting else "drained" if workers else "no worker"
    return {
        "id": entry.id,
        "label": make_label(standing),
        "missing": missing,
        "workers": len(workers),
        "running": sum(int(worker.facts.get("running", 0)) for worker in workers),
        "slots": sum(map(state.count_slots, workers)),
        "queued": format_exact(live.count_queued(entry.id)),
        "context": format_exact(files.max_model_len) if files else NONE,
        "vocabulary": format_exact(files.vocab_size) if files else NONE,
        "dtype": entry.dtype,
        "adapters": list(entry.adapters),
        "abilities": [n.replace("_", " ") for n, has in list_abilities(files).items() if has]
        if files
        else [],
        "prices": [(kind.replace("_", " "), f"{price:g}") for kind, price in entry.prices.items()],
        "requests": format_compact(used["requests"]) if used else "0",
        "tokens": format_compact(used["tokens"]) if used else "0",
        "cost": format_money(used["cost_nanos"]) if used else format_money(0),
    }
