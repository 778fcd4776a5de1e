"""The page of one job, open or ended."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from django.http import Http404, HttpRequest, HttpResponseBase
from django.urls import reverse
from django.utils import timezone

from completions.accounts import audit
from completions.accounts.scope import Viewer, is_confined, may_manage, sees_organization
from completions.admin.base import render_page, require_view
from completions.admin.display import (
    NONE,
    format_ago,
    format_compact,
    format_exact,
    format_milliseconds,
    format_money,
    format_seconds,
    format_share,
    make_label,
)
from completions.admin.job_texts import decode_prompt, describe_late_sight, list_answers
from completions.admin.live import state
from completions.admin.request_body import load_body
from completions.exceptions import from_job_error
from completions.jobs import durable, operate
from completions.jobs.record import JobRecord
from completions.models import ApiKey, Job, Organization, StoredPrompt, UsageRecord
from completions.models.batches import parse_job_id

JOB_CANCELLED = "job cancelled"
"""What the audit trail calls the use of a key by which a user of the admin cancels its job."""


@dataclass(frozen=True, slots=True)
class _JobFacts:
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


def _find(job_id: str, user: Viewer) -> _JobFacts:
    """Look up a job that the user sees. Raises Http404."""
    facts = _look_up(job_id)
    if not sees_organization(user, facts.organization.pk):
        raise _missing(job_id)
    return facts


def _look_up(job_id: str) -> _JobFacts:
    """Look a job up in Redis and SQL. Raises Http404."""
    records = UsageRecord.objects.select_related("organization", "api_key")
    record = records.filter(job_id=job_id).first()
    job = None
    with suppress(state.UnreachableError), state.open_shards() as shards:
        job = operate.read_job(shards.find_by_job(job_id), job_id)
    is_open = job is not None and not job.has_ended
    if record is not None:
        return _JobFacts(job_id, record, job, is_open, record.organization, record.api_key)
    if job is None and (row := Job.objects.filter(id=job_id).first()) is not None:
        job = durable.make_record(row)
    if job is not None:
        key = ApiKey.objects.filter(id=job.api_key_id).first()
        owner = Organization.objects.filter(id=job.organization_id).first()
        if owner is not None:
            return _JobFacts(job_id, None, job, is_open, owner, key)
    raise _missing(job_id)


def _missing(job_id: str) -> Http404:
    return Http404(f"There is no job {job_id}.")


def _may_act(facts: _JobFacts, user: Viewer) -> bool:
    return not is_confined(user) or (facts.key is not None and may_manage(user, facts.key))


def find_key_to_cancel(job_id: str, user: Viewer) -> ApiKey | None:
    """Return the key of a job, if both are known. Raises Http404 for a job that a member may not
    cancel. Operators may name any."""
    try:
        facts = _find(job_id, user)
    except Http404:
        if is_confined(user):
            raise
        return None
    if not _may_act(facts, user):
        raise _missing(job_id)
    return facts.key


@require_view("view_job", for_members=True)
def show_job(request: HttpRequest, job_id: str) -> HttpResponseBase:
    """Show what the job was, who sent it, how long each phase took, its cost, and why it failed."""
    facts = _find(job_id, request.user)
    timeline = _make_timeline(facts)
    code, message = _get_error(facts)
    batch = None
    with suppress(ValueError):
        batch = parse_job_id(job_id)
    context = {
        "job_id": job_id,
        "status_label": make_label(_get_status(facts)),
        "open": facts.is_open,
        "may_act": request.user.has_perm("completions.change_job")
        and _may_act(facts, request.user),
        "may_requeue": not is_confined(request.user),
        "error_code": code,
        "error_message": message,
        "facts": _list_facts(facts),
        "counts": _list_counts(facts),
        "timeline": timeline.list_phases(),
        "moments": timeline.list_moments(),
        "parameters": _list_parameters(facts),
        "cancelled_by": _describe_canceller(facts),
        **_load_texts(facts, request),
        "stores": facts.organization.store_prompts,
        "organization": facts.organization,
        "batch": batch,
    }
    return render_page(request, "quire/job.html", "Job", context)


def _get_status(facts: _JobFacts) -> str:
    if facts.record and not facts.is_open:
        return facts.record.status
    job = _get_either(facts.job)
    return "cancelling" if facts.is_open and job.cancelling else str(job.state)


def _get_error(facts: _JobFacts) -> tuple[str, str]:
    """Return the error code and message: the worker's message while it is available."""
    if facts.job and (error := facts.job.error):
        return error.code, error.message or from_job_error(error.code).message
    code = facts.record.error_code if facts.record else ""
    return code, from_job_error(code).message if code else ""


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each phase of a job began, in milliseconds since its arrival; None if unknown."""

    created: datetime
    claimed: float | None
    first_token: float | None
    end: float | None

    def list_phases(self) -> list[dict[str, object]]:
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
                "took": format_milliseconds(took),
                "percent": round(100 * took / until, 2) if until else 0,
            }
            for tone, name, took in spans
        ]

    def list_moments(self) -> list[tuple[str, str, str]]:
        """Return (event, clock time, time since arrival) for each known event."""
        rows = (
            ("Accepted", 0.0),
            ("Claimed by a worker", self.claimed),
            ("First token", self.first_token),
            ("Ended", self.end),
        )
        return [
            (
                name,
                f"{(self.created + timedelta(milliseconds=at)).astimezone(UTC):%Y-%m-%d %H:%M:%S}",
                f"+ {format_milliseconds(at)}",
            )
            for name, at in rows
            if at is not None
        ]


def _make_timeline(facts: _JobFacts) -> Timeline:
    if (record := facts.record) is not None:
        return Timeline(
            record.created_at, record.queued_ms, record.first_token_ms, record.latency_ms
        )
    job = _get_either(facts.job)
    moments = (job.started, job.first, job.finished)
    spans = [at and (at - job.created) * 1000 for at in moments]
    return Timeline(datetime.fromtimestamp(job.created, UTC), *spans)


def _list_facts(facts: _JobFacts) -> list[tuple[str, str, str]]:
    """Return (name, value, link); a fact without a value is left out."""
    job, record = facts.job, facts.record
    either = _get_either(record, job)
    key_link = reverse("admin:completions_apikey_change", args=[facts.key.pk]) if facts.key else ""
    organization = reverse("admin:completions_organization_change", args=[facts.organization.pk])
    attempts = record.attempts if record else job.attempt if job else None
    rows = [
        ("Request id", (record and record.request_id) or (job.request_id if job else ""), ""),
        ("Organization", facts.organization.name, organization),
        ("API key", str(facts.key) if facts.key else "deleted", key_link),
        ("Model", either.model, ""),
        ("Adapter", record.adapter if record else "", ""),
        ("Kind", either.kind, ""),
        ("Worker", (record and record.worker) or (job.worker if job else ""), ""),
        ("Attempts", format_exact(attempts) if attempts else "", ""),
        ("Lost workers", format_exact(job.worker_failures) if job else "", ""),
    ]
    if facts.is_open and job:
        deadline = datetime.fromtimestamp(job.deadline, UTC)
        rows.append(("Deadline", format_ago(deadline, timezone.now()), ""))
    return [(name, value, link) for name, value, link in rows if value and value != "0"]


def _get_either(*values: object) -> Any:
    return next(each for each in values if each is not None)


def _list_counts(facts: _JobFacts) -> list[tuple[str, str, str]]:
    if (record := facts.record) is not None:
        generating: float | None = record.run_ms
        if record.first_token_ms is not None:
            generating = max(1, record.latency_ms - record.first_token_ms)
        rate = 1000 * record.completion_tokens / generating if generating else 0
        return [
            (
                "Prompt tokens",
                format_exact(record.prompt_tokens),
                f"{format_share(record.cached_tokens, record.prompt_tokens)} cached",
            ),
            (
                "Output tokens",
                format_exact(record.completion_tokens),
                f"{format_share(record.forced_tokens, record.completion_tokens)} forced",
            ),
            (
                "Took",
                format_milliseconds(record.latency_ms),
                f"first token {format_milliseconds(record.first_token_ms)}",
            ),
            ("Speed", f"{format_compact(rate)}/s" if rate else NONE, "output tokens"),
            ("Cost", format_money(record.cost_nanos), ""),
        ]
    job = _get_either(facts.job)
    now = job.finished or timezone.now().timestamp()
    running = now - job.started if job.started else None
    return [
        ("Prompt tokens", format_exact(job.prompt_tokens), ""),
        ("Output tokens", format_exact(job.generated), "so far" if facts.is_open else ""),
        ("Waited", format_seconds((job.started or now) - job.created), ""),
        ("Running", format_seconds(running), f"attempt {job.attempt}" if job.attempt else ""),
        (
            "Speed",
            f"{format_compact(job.generated / running)}/s" if running else NONE,
            "output tokens",
        ),
    ]


def _list_parameters(facts: _JobFacts) -> list[tuple[str, str, bool]]:
    """Return (name, value, whether it is long) for the request's parameters.

    The prompt is left out, and so is a grammar unless the organization stores prompts.
    """
    payload: Mapping[str, object] = {}
    if facts.record and facts.record.parameters:
        payload = facts.record.parameters
    elif facts.job:
        payload = facts.job.parameters
    if facts.organization.store_prompts and (request := _get_request(facts)):
        payload = {**payload, "grammar": request.get("grammar") or ""}
    return [
        (name, text, len(text) > 60)
        for name, value in payload.items()
        if (text := _format_value(value))
    ]


_CANCELLERS: Mapping[str, str] = {
    "client": "Its client cancelled it by a call of the API.",
    "hang-up": "Its client closed the connection before the end.",
    "operator": "A user of the admin cancelled it.",
    "batch": "Its batch was cancelled, or had expired.",
    "web": "The web process that its client was waiting at ended.",
}


def _describe_canceller(facts: _JobFacts) -> str:
    either = facts.record or facts.job
    by = either.cancelled_by if either else ""
    key = facts.key if by == "operator" else None
    if key is not None and (actor := audit.find_user(key, JOB_CANCELLED, facts.id)):
        return f"{actor} cancelled it."
    return _CANCELLERS.get(by, "")


def _load_texts(facts: _JobFacts, request: HttpRequest) -> dict[str, object]:
    """Return prompts and answers, if the organization stores them, and whether the user may try
    the request again."""
    if not facts.organization.store_prompts:
        return {}
    stored = StoredPrompt.objects.filter(job_id=facts.id).first()
    document = _get_request(facts) or (stored.document() if stored else {})
    model = _get_either(facts.record, facts.job).model
    may_try = stored is not None and request.user.has_perm("completions.add_job")
    prompts = [decode_prompt(model, ids) for ids in document.get("prompts", ())]
    body = load_body(stored, facts.record) if may_try and stored and facts.record else None
    return {
        "prompts": prompts,
        "late": prompts and describe_late_sight(facts.organization, _make_timeline(facts).created),
        "answers": list_answers(stored) if stored else [],
        "may_try": may_try,
        "body": body and {name: json.dumps(each) for name, each in body.items()},
        "key": facts.key if facts.key and facts.key.state(timezone.now()) == "active" else None,
    }


def _get_request(facts: _JobFacts) -> Mapping[str, Any] | None:
    """Return the request as sent to the worker; None once the job has ended."""
    raw = facts.job.request if facts.job else b""
    return orjson.loads(raw) if raw else None


def _format_value(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, indent=2 if isinstance(value, dict) else None)
