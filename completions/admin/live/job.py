"""The page of one job, open or ended."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponseBase
from django.urls import reverse
from django.utils import timezone

from completions.admin import state
from completions.admin.base import page, sees
from completions.admin.display import (
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
from completions.admin.live.timeline import Timeline
from completions.batches import lines
from completions.catalog import model_files
from completions.catalog.entries import CatalogError
from completions.catalog.model_files import ModelFilesError
from completions.errors import from_job_error
from completions.jobs import operate
from completions.jobs.record import JobRecord, parameters_of
from completions.models import ApiKey, Job, Organization, StoredPrompt, UsageRecord

_PROMPT_TOKENS = 4000
"""Tokens of a prompt that are shown."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Everything that SQL and Redis know about a job."""

    id: str
    record: UsageRecord | None
    """Its usage, once it has ended and was settled."""
    row: Job | None
    """Its row, if it is a background job."""
    details: JobRecord | None
    """Its state in Redis, until that expires."""
    organization: Organization
    key: ApiKey | None

    @property
    def open(self) -> JobRecord | None:
        """The state in Redis while the job has not ended."""
        return self.details if self.details and not self.details.ended else None


def _find(job_id: str) -> _Known:
    """Look a job up everywhere. Raises Http404."""
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
    raise Http404(f"There is no job {job_id}.")


@sees("view_job")
def job_page(request: HttpRequest, job_id: str) -> HttpResponseBase:
    """Show what the job was, whose, how long each phase took, its cost, and why it failed."""
    known = _find(job_id)
    timeline = _timeline(known)
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
        "counts": _counts(known),
        "timeline": timeline.phases(),
        "moments": timeline.moments(),
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
    """Return the error code and message: the worker's message while Redis has it."""
    if known.details and (error := known.details.error):
        return error.code, error.message or from_job_error(error.code).message
    stored = known.record or known.row
    if stored is None or not stored.error_code:
        return "", ""
    return stored.error_code, from_job_error(stored.error_code).message


def _timeline(known: _Known) -> Timeline:
    if (record := known.record) is not None:
        return Timeline(
            record.created_at, record.queued_ms, record.first_token_ms, record.latency_ms
        )
    if known.details is not None:
        job = known.details
        began = job.started and (job.started - job.created) * 1000
        end_at = known.details.finished
        since = (end_at - job.created) * 1000 if end_at else None
        created = datetime.fromtimestamp(job.created, UTC)
        return Timeline(created, began, None, since)
    assert known.row is not None
    row_end = known.row.finished_at
    lasted = (row_end - known.row.created_at).total_seconds() * 1000 if row_end else None
    return Timeline(known.row.created_at, None, None, lasted)


def _facts(known: _Known) -> list[tuple[str, str, str]]:
    """Return (name, value, link); a fact without a value is left out."""
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


def _counts(known: _Known) -> list[tuple[str, str, str]]:
    """Return (title, figure, note) for each tile."""
    if (record := known.record) is not None:
        generating: float | None = record.run_ms
        if record.first_token_ms is not None:
            generating = max(1, record.latency_ms - record.first_token_ms)
        rate = 1000 * record.completion_tokens / generating if generating else 0
        return [
            ("Prompt tokens", exact(record.prompt_tokens),
             f"{share(record.cached_tokens, record.prompt_tokens)} cached"),
            ("Output tokens", exact(record.completion_tokens),
             f"{share(record.forced_tokens, record.completion_tokens)} forced"),
            ("Took", milliseconds(record.latency_ms),
             f"first token {milliseconds(record.first_token_ms)}"),
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
    """Return (name, value, whether it is long) for the request's parameters.

    The prompt is left out, and so is a grammar unless the organization has prompts stored.
    """
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
    """The request for the worker; None once the job has ended."""
    raw = known.details.request if known.details else b""
    return orjson.loads(raw) if raw else None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, indent=2 if isinstance(value, dict) else None)


def _prompts(known: _Known) -> list[str]:
    """The prompts, if the organization has them stored."""
    if not known.organization.store_prompts:
        return []
    request = _request(known)
    if request is None and (stored := StoredPrompt.objects.filter(job_id=known.id).first()):
        request = stored.document()
    model = _one_of(known.record, known.details, known.row).model
    return [_readable(model, ids) for ids in (request or {}).get("prompts", ())]


def _readable(model: str, ids: Sequence[int]) -> str:
    cut = f" … {len(ids) - _PROMPT_TOKENS} more tokens" if len(ids) > _PROMPT_TOKENS else ""
    shown = list(ids[:_PROMPT_TOKENS])
    try:
        tokenizer = model_files.load(model_files.served_models().choose(model)).tokenizer
    except (CatalogError, ModelFilesError):  # no longer served
        return f"{shown}{cut}"
    return f"{tokenizer.decode(shown, skip_special_tokens=False)}{cut}"


def _batch_of(known: _Known) -> tuple[str, int] | None:
    try:
        return lines.place_of(known.id)
    except ValueError:
        return None
