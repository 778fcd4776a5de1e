"""The page of one job, open or ended."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from django.http import Http404, HttpRequest, HttpResponseBase
from django.urls import reverse
from django.utils import timezone

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
from completions.admin.live import state
from completions.batches import lines
from completions.catalog import model_files
from completions.catalog.entries import CatalogError
from completions.catalog.model_files import ModelFilesError
from completions.exceptions import from_job_error
from completions.jobs import durable, operate
from completions.jobs.record import JobRecord
from completions.models import ApiKey, Job, Organization, StoredPrompt, UsageRecord

_PROMPT_TOKENS = 4000
"""The number of prompt tokens shown."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What SQL and Redis know about a job. At least one of `record` and `job` is set."""

    id: str
    record: UsageRecord | None
    """The job's usage, once it has ended and is settled."""
    job: JobRecord | None
    """The state in Redis or, once that has expired, the stored row of a job that is not settled."""
    is_open: bool
    """Whether the job is in Redis and has not ended."""
    organization: Organization
    key: ApiKey | None


def _find(job_id: str) -> _Known:
    """Look a job up in Redis and SQL. Raises Http404."""
    records = UsageRecord.objects.select_related("organization", "api_key")
    record = records.filter(job_id=job_id).first()
    job = None
    with suppress(state.UnreachableError), state.store() as store:
        job = operate.read_job(store, job_id)
    is_open = job is not None and not job.has_ended
    if record is not None:
        return _Known(job_id, record, job, is_open, record.organization, record.api_key)
    if job is None and (row := Job.objects.filter(id=job_id).first()) is not None:
        job = durable.make_record(row)
    if job is not None:
        key = ApiKey.objects.filter(id=job.api_key_id).first()
        owner = Organization.objects.filter(id=job.organization_id).first()
        if owner is not None:
            return _Known(job_id, None, job, is_open, owner, key)
    raise Http404(f"There is no job {job_id}.")


@sees("view_job")
def job_page(request: HttpRequest, job_id: str) -> HttpResponseBase:
    """Show what the job was, who sent it, how long each phase took, its cost, and why it failed."""
    known = _find(job_id)
    timeline = _timeline(known)
    code, message = _error(known)
    batch = None
    with suppress(ValueError):
        batch = lines.parse_job_id(job_id)
    context = {
        "job_id": job_id,
        "status_label": label(_status(known)),
        "open": known.is_open,
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
        "batch": batch,
    }
    return page(request, "quire/job.html", "Job", context)


def _status(known: _Known) -> str:
    if known.record and not known.is_open:
        return known.record.status
    job = _either(known.job)
    return "cancelling" if known.is_open and job.cancelling else str(job.state)


def _error(known: _Known) -> tuple[str, str]:
    """Return the error code and message: the worker's message while it is available."""
    if known.job and (error := known.job.error):
        return error.code, error.message or from_job_error(error.code).message
    code = known.record.error_code if known.record else ""
    return code, from_job_error(code).message if code else ""


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each phase of a job began, in milliseconds since its arrival; None if unknown."""

    created: datetime
    claimed: float | None
    first_token: float | None
    end: float | None

    def phases(self) -> list[dict[str, Any]]:
        until = self.end
        if until is None:
            until = (timezone.now() - self.created).total_seconds() * 1000
        if self.claimed is None:
            spans = [("waiting", "queued", until)]
        else:
            claimed = min(self.claimed, until)
            spans = [("waiting", "queued", claimed)]
            if self.first_token is None:
                spans.append(("decode", "in the worker", until - claimed))
            else:
                first = min(max(self.first_token, claimed), until)
                spans.append(("prefill", "to the first token", first - claimed))
                spans.append(("decode", "generating", until - first))
        return [
            {
                "tone": tone,
                "name": name,
                "took": milliseconds(took),
                "percent": round(100 * took / until, 2) if until else 0,
            }
            for tone, name, took in spans
        ]

    def moments(self) -> list[tuple[str, str, str]]:
        """Return (event, clock time, time since arrival) for each known event."""
        named = (
            ("Accepted", 0.0), ("Claimed by a worker", self.claimed),
            ("First token", self.first_token), ("Ended", self.end),
        )  # fmt: skip
        return [
            (
                name,
                f"{(self.created + timedelta(milliseconds=at)).astimezone(UTC):%Y-%m-%d %H:%M:%S}",
                f"+ {milliseconds(at)}",
            )
            for name, at in named
            if at is not None
        ]


def _timeline(known: _Known) -> Timeline:
    if (record := known.record) is not None:
        return Timeline(
            record.created_at, record.queued_ms, record.first_token_ms, record.latency_ms
        )
    job = _either(known.job)
    moments = (job.started, job.first, job.finished)
    spans = [at and (at - job.created) * 1000 for at in moments]
    return Timeline(datetime.fromtimestamp(job.created, UTC), *spans)


def _facts(known: _Known) -> list[tuple[str, str, str]]:
    """Return (name, value, link); a fact without a value is left out."""
    job, record = known.job, known.record
    either = _either(record, job)
    key_link = reverse("admin:completions_apikey_change", args=[known.key.pk]) if known.key else ""
    organization = reverse("admin:completions_organization_change", args=[known.organization.pk])
    attempts = record.attempts if record else job.attempt if job else None
    found = [
        ("Request id", (record and record.request_id) or (job.request_id if job else ""), ""),
        ("Organization", known.organization.name, organization),
        ("API key", str(known.key) if known.key else "deleted", key_link),
        ("Model", either.model, ""),
        ("Adapter", record.adapter if record else "", ""),
        ("Kind", either.kind, ""),
        ("Worker", (record and record.worker) or (job.worker if job else ""), ""),
        ("Attempts", exact(attempts) if attempts else "", ""),
        ("Lost workers", exact(job.worker_failures) if job else "", ""),
    ]
    if known.is_open and job:
        deadline = datetime.fromtimestamp(job.deadline, UTC)
        found.append(("Deadline", ago(deadline, timezone.now()), ""))
    return [(name, value, link) for name, value, link in found if value and value != "0"]


def _either(*found: Any) -> Any:
    return next(each for each in found if each is not None)


def _counts(known: _Known) -> list[tuple[str, str, str]]:
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
    job = _either(known.job)
    now = job.finished or timezone.now().timestamp()
    running = now - job.started if job.started else None
    return [
        ("Prompt tokens", exact(job.prompt_tokens), ""),
        ("Output tokens", exact(job.generated), "so far" if known.is_open else ""),
        ("Waited", seconds((job.started or now) - job.created), ""),
        ("Running", seconds(running), f"attempt {job.attempt}" if job.attempt else ""),
        ("Speed", f"{compact(job.generated / running)}/s" if running else NONE, "output tokens"),
    ]


def _parameters(known: _Known) -> list[tuple[str, str, bool]]:
    """Return (name, value, whether it is long) for the request's parameters.

    The prompt is left out, and so is a grammar unless the organization stores prompts.
    """
    asked: Mapping[str, Any] = {}
    if known.record and known.record.parameters:
        asked = known.record.parameters
    elif known.job:
        asked = known.job.parameters
    if known.organization.store_prompts and (request := _request(known)):
        asked = {**asked, "grammar": request.get("grammar") or ""}
    return [(name, text, len(text) > 60) for name, value in asked.items() if (text := _text(value))]


def _request(known: _Known) -> Mapping[str, Any] | None:
    """The request as sent to the worker; None once the job has ended."""
    raw = known.job.request if known.job else b""
    return orjson.loads(raw) if raw else None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, indent=2 if isinstance(value, dict) else None)


def _prompts(known: _Known) -> list[str]:
    """The prompts, if the organization stores them."""
    if not known.organization.store_prompts:
        return []
    request = _request(known)
    if request is None and (stored := StoredPrompt.objects.filter(job_id=known.id).first()):
        request = stored.document()
    model = _either(known.record, known.job).model
    return [_readable(model, ids) for ids in (request or {}).get("prompts", ())]


def _readable(model: str, ids: Sequence[int]) -> str:
    cut = f" … {len(ids) - _PROMPT_TOKENS} more tokens" if len(ids) > _PROMPT_TOKENS else ""
    shown = list(ids[:_PROMPT_TOKENS])
    try:
        tokenizer = model_files.load(model_files.served_models().choose(model)).tokenizer
    except (CatalogError, ModelFilesError):  # the model is no longer served
        return f"{shown}{cut}"
    return f"{tokenizer.decode(shown, skip_special_tokens=False)}{cut}"
