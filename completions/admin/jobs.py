"""Jobs: what waits and runs now, and one job with its whole story."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone

from completions.admin import state
from completions.admin.base import acts, page, sees
from completions.admin.formats import (
    NONE,
    ago,
    compact,
    exact,
    label,
    milliseconds,
    money,
    seconds,
    share,
)
from completions.batches import lines
from completions.catalog import model_files
from completions.catalog.entries import CatalogError
from completions.catalog.model_files import ModelFilesError
from completions.errors import from_job_error
from completions.jobs import operate
from completions.jobs.record import JobRecord, parameters_of
from completions.models import ApiKey, Job, Organization, StoredPrompt, UsageRecord

_SHOWN = 200
_PROMPT_TOKENS = 4000
"""Of one prompt that are shown."""


# What waits and runs -----------------------------------------------------------------------------


@sees("view_job")
def live_list(request: HttpRequest) -> HttpResponseBase:
    """Open jobs, the oldest first."""
    now_live = state.read()
    wanted = request.GET.get("state", "")
    found = [job for job in now_live.jobs if wanted in ("", job.state)]
    shown = found[:_SHOWN]
    keys = ApiKey.objects.select_related("organization").in_bulk({j.api_key_id for j in shown})
    context = {
        "live": now_live,
        "rows": [_row(job, keys.get(job.api_key_id)) for job in shown],
        "hidden": len(found) - len(shown) + now_live.open_in_all - len(now_live.jobs),
        "states": [
            ("", "All", len(now_live.jobs)),
            *(
                (name, name.capitalize(), sum(job.state == name for job in now_live.jobs))
                for name in ("running", "queued")
            ),
        ],
        "wanted": wanted,
        "may_act": request.user.has_perm("completions.change_job"),
    }
    return page(request, "quire/live.html", "Live jobs", context)


def _row(job: JobRecord, key: ApiKey | None) -> dict[str, Any]:
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


# One job -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Known:
    """All that anybody knows of a job."""

    id: str
    record: UsageRecord | None
    row: Job | None
    details: JobRecord | None
    organization: Organization
    key: ApiKey | None

    @property
    def open(self) -> JobRecord | None:
        """While it has not ended."""
        return self.details if self.details and not self.details.ended else None


def _find(job_id: str) -> _Known:
    """Raises Http404."""
    related = ("organization", "api_key")
    record = UsageRecord.objects.filter(job_id=job_id).select_related(*related).first()
    row = Job.objects.filter(id=job_id).select_related(*related).defer("events", "view").first()
    details = None
    try:
        with state.client() as client:
            details = operate.details(client, settings.REDIS_PREFIX, job_id)
    except state.UnreachableError:
        pass
    if (stored := record or row) is not None:
        return _Known(job_id, record, row, details, stored.organization, stored.api_key)
    if details is not None:
        key = ApiKey.objects.filter(id=details.api_key_id).first()
        owner = Organization.objects.filter(id=details.organization_id).first()
        if owner is not None:
            return _Known(job_id, None, None, details, owner, key)
    raise Http404(f"Nothing is known of {job_id}.")


@sees("view_job")
def job_page(request: HttpRequest, job_id: str) -> HttpResponseBase:
    """What it was, whose, how long each part took, what it cost, and why it failed."""
    known = _find(job_id)
    times = _times(known)
    code, message = _error(known)
    status = _status(known)
    context = {
        "job_id": job_id,
        "status_label": label(status),
        "open": known.open is not None,
        "may_act": request.user.has_perm("completions.change_job"),
        "error_code": code,
        "error_message": message,
        "facts": _facts(known),
        "counts": _counts(known, times),
        "timeline": times.phases(),
        "moments": times.moments(),
        "parameters": _parameters(known),
        "prompts": _prompts(known),
        "stores": known.organization.store_prompts,
        "organization": known.organization,
        "batch": _batch_of(known),
    }
    return page(request, "quire/job.html", "Job", context)


def _status(known: _Known) -> str:
    if known.open:
        return "cancelling" if known.open.cancelling else known.open.state
    if known.record:
        return known.record.status
    if known.details:
        return known.details.state
    return known.row.status if known.row else "unknown"


def _error(known: _Known) -> tuple[str, str]:
    """Its code, and what that means: in the worker's own words while Redis has them."""
    if known.details and (error := known.details.error):
        return error.code, error.message or from_job_error(error.code).message
    stored = known.record or known.row
    if stored is None or not stored.error_code:
        return "", ""
    return stored.error_code, from_job_error(stored.error_code).message


@dataclass(frozen=True, slots=True)
class _Times:
    """Milliseconds since the job's arrival; None what has not happened or nobody noted."""

    created: datetime
    claimed: float | None
    first_token: float | None
    end: float | None

    def phases(self) -> list[dict[str, Any]]:
        """Waiting, prompt, generation, as parts of a bar."""
        until = self.end
        if until is None:
            until = (timezone.now() - self.created).total_seconds() * 1000
        marks: list[tuple[str, str, float]] = []
        if self.claimed is None:
            marks = [("waiting", "queued", until)]
        else:
            begun = min(self.claimed, until)
            marks.append(("waiting", "queued", begun))
            if self.first_token is not None:
                first = min(max(self.first_token, begun), until)
                marks += [("prefill", "to the first token", first - begun)]
                marks += [("decode", "generating", until - first)]
            else:
                marks.append(("decode", "in the worker", until - begun))
        return [
            {
                "tone": tone,
                "name": name,
                "took": milliseconds(took),
                "percent": round(100 * took / until, 2) if until else 0,
            }
            for tone, name, took in marks
        ]

    def moments(self) -> list[tuple[str, str, str]]:
        """(what, clock time, since arrival)."""
        named = (
            ("Accepted", 0.0), ("Taken by a worker", self.claimed),
            ("First token", self.first_token), ("Ended", self.end),
        )  # fmt: skip
        return [
            (name, f"{_later(self.created, at):%Y-%m-%d %H:%M:%S}", f"+ {milliseconds(at)}")
            for name, at in named
            if at is not None
        ]


def _later(moment: datetime, ms: float) -> datetime:
    return datetime.fromtimestamp(moment.timestamp() + ms / 1000, UTC)


def _times(known: _Known) -> _Times:
    if (record := known.record) is not None:
        claimed, ran = record.queued_ms, record.run_ms
        whole = (record.finished_at - record.created_at).total_seconds() * 1000
        end = claimed + ran if claimed is not None and ran is not None else whole
        return _Times(record.created_at, claimed, record.first_token_ms, end)
    if known.details is not None:
        job = known.details
        began = job.started and (job.started - job.created) * 1000
        end_at = known.details.finished
        since = (end_at - job.created) * 1000 if end_at else None
        created = datetime.fromtimestamp(job.created, UTC)
        return _Times(created, began, None, since)
    assert known.row is not None
    row_end = known.row.finished_at
    lasted = (row_end - known.row.created_at).total_seconds() * 1000 if row_end else None
    return _Times(known.row.created_at, None, None, lasted)


def _facts(known: _Known) -> list[tuple[str, str, str]]:
    """(what, value, link)."""
    job, record = known.details, known.record
    key_link = reverse("admin:completions_apikey_change", args=[known.key.pk]) if known.key else ""
    organization = reverse("admin:completions_organization_change", args=[known.organization.pk])
    attempts = record.attempts if record else job.attempt if job else None
    found = [
        ("Request id", (record and record.request_id) or (job.request_id if job else ""), ""),
        ("Organization", known.organization.name, organization),
        ("API key", str(known.key) if known.key else "deleted", key_link),
        ("Model", _one_of(record, job, known.row).model, ""),
        ("Adapter", record.adapter if record else "", ""),
        ("Kind", _one_of(record, job, known.row).kind, ""),
        ("Worker", (record and record.worker) or (job.worker if job else ""), ""),
        ("Attempts", exact(attempts) if attempts else "", ""),
        ("Lost workers", exact(known.details.losses) if known.details else "", ""),
    ]
    if known.open:
        deadline = datetime.fromtimestamp(known.open.deadline, UTC)
        found.append(("Deadline", ago(deadline, timezone.now()), ""))
    return [(name, value, link) for name, value, link in found if value and value != "0"]


def _one_of(*found: Any) -> Any:
    return next(each for each in found if each is not None)


def _counts(known: _Known, times: _Times) -> list[tuple[str, str, str]]:
    """(what, figure, note)."""
    if (record := known.record) is not None:
        generating: float | None = record.run_ms
        if record.first_token_ms is not None and times.end is not None:
            generating = max(1, round(times.end - record.first_token_ms))
        rate = 1000 * record.completion_tokens / generating if generating else 0
        return [
            ("Prompt tokens", exact(record.prompt_tokens),
             f"{share(record.cached_tokens, record.prompt_tokens)} cached"),
            ("Output tokens", exact(record.completion_tokens),
             f"{share(record.forced_tokens, record.completion_tokens)} forced"),
            ("Took", milliseconds(times.end), f"first token {milliseconds(record.first_token_ms)}"),
            ("Speed", f"{compact(rate)}/s" if rate else NONE, "output tokens"),
            ("Cost", money(record.cost_nanos), ""),
        ]  # fmt: skip
    if known.details is None:
        return []
    job = known.details
    now = known.details.finished or timezone.now().timestamp()
    running = now - job.started if job.started else None
    return [
        ("Prompt tokens", exact(job.prompt_tokens), ""),
        ("Output tokens", exact(job.generated), "so far" if known.open else ""),
        ("Waited", seconds((job.started or now) - job.created), ""),
        ("Running", seconds(running), f"attempt {job.attempt}" if job.attempt else ""),
        ("Speed", f"{compact(job.generated / running)}/s" if running else NONE, "output tokens"),
    ]


def _parameters(known: _Known) -> list[tuple[str, str, bool]]:
    """(name, value, whether it is long), less the prompt; a grammar is the client's own as well."""
    asked: Mapping[str, Any] = {}
    if known.record and known.record.parameters:
        asked = known.record.parameters
    elif known.details:
        asked = known.details.parameters
    elif known.row and known.row.request:
        asked = parameters_of(known.row.request)
    if known.organization.store_prompts and (request := _request(known)):
        asked = {**asked, "grammar": request.get("grammar") or ""}
    return [(name, text, len(text) > 60) for name, value in asked.items() if (text := _text(value))]


def _request(known: _Known) -> Mapping[str, Any] | None:
    """What its worker reads; None once the job has ended."""
    raw = known.details.request if known.details else b""
    return orjson.loads(raw) if raw else None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, indent=2 if isinstance(value, dict) else None)


def _prompts(known: _Known) -> list[str]:
    """Shown only where the organization has them stored."""
    if not known.organization.store_prompts:
        return []
    request = _request(known)
    if request is None and (stored := StoredPrompt.objects.filter(job_id=known.id).first()):
        request = lines.unpack(bytes(stored.request))
    model = _one_of(known.record, known.details, known.row).model
    return [_readable(model, ids) for ids in (request or {}).get("prompts", ())]


def _readable(model: str, ids: Sequence[int]) -> str:
    cut = f" … {len(ids) - _PROMPT_TOKENS} more tokens" if len(ids) > _PROMPT_TOKENS else ""
    shown = list(ids[:_PROMPT_TOKENS])
    try:
        tokenizer = model_files.load(model_files.served_models().choose(model)).tokenizer
    except (CatalogError, ModelFilesError):  # no longer served: its ids are all there is
        return f"{shown}{cut}"
    return f"{tokenizer.decode(shown, skip_special_tokens=False)}{cut}"


def _batch_of(known: _Known) -> tuple[str, int] | None:
    try:
        return lines.place_of(known.id)
    except ValueError:
        return None


# What one does with it ---------------------------------------------------------------------------


@acts("change_job")
def cancel(request: HttpRequest, job_id: str) -> HttpResponseBase:
    """At once while it is queued, with the worker's next step while it runs."""
    with state.client() as client:
        was = operate.cancel(client, settings.REDIS_PREFIX, job_id)
    if was in ("queued", "running"):
        messages.success(request, f"{job_id} was {was} and is cancelled.")
    else:
        messages.warning(request, f"{job_id} has ended already: {was or 'nothing runs'}.")
    return redirect("operations:job", job_id)


@acts("change_job")
def requeue(request: HttpRequest, job_id: str) -> HttpResponseBase:
    """For a job whose worker is stuck, or whose message was lost."""
    with state.client() as client:
        was = operate.requeue(client, settings.REDIS_PREFIX, job_id)
    if was == "running":
        messages.success(
            request, f"{job_id} was taken from its worker and goes on where it was, within seconds."
        )
    elif was == "queued":
        messages.success(request, f"{job_id} is offered to the workers again, within seconds.")
    else:
        messages.warning(request, f"{job_id} has ended already: {was or 'nothing runs'}.")
    return redirect("operations:job", job_id)
