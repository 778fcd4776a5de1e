"""Results of lines. Each is stored once, and counted in the same transaction."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import F

from completions.batches import lines
from completions.jobs.events import Usage
from completions.jobs.settle import EndedJob
from completions.models import OPEN_LINES, Batch, BatchLine, BatchStatus, LineState
from completions.responses.ended import whole_response

_TIMEOUTS = ("queue_timeout", "generation_timeout")
"""Codes of jobs whose deadline has passed. The deadline of a line is the batch's expiry."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of one line."""

    batch_id: str
    number: int
    succeeded: bool
    usage: Usage
    reasoning_tokens: int
    """Completion tokens that are reasoning."""
    result: bytes | None
    """The packed output line; None if there is no response."""
    timed_out: bool
    attempts: int
    """Attempts by workers."""


def answer(job: EndedJob) -> Answer:
    """Return what to store for the ended job of a line."""
    batch_id, number = lines.place_of(job.id)
    timed_out = job.error is not None and job.error.code in _TIMEOUTS
    result, succeeded, reasoning = None, False, 0
    if job.state != "cancelled" and not timed_out:
        status, body = whole_response(job)
        response = {"status_code": status, "request_id": f"req_{job.id}", "body": body}
        result = lines.pack(lines.answered(response, job.attempt))
        succeeded = status < 300
        reasoning = body["usage"]["reasoning_tokens"] if body.get("usage") else 0
    usage = job.usage or Usage(0, 0)
    return Answer(batch_id, number, succeeded, usage, reasoning, result, timed_out, job.attempt)


def keep(answers: Iterable[Answer]) -> None:
    """Store results for lines that have none. Runs in the caller's transaction."""
    by_batch: dict[str, dict[int, Answer]] = defaultdict(dict)
    for each in answers:
        by_batch[each.batch_id][each.number] = each
    for batch in Batch.objects.select_for_update().filter(id__in=by_batch).order_by("id"):
        _keep(batch, by_batch[batch.id])


def _keep(batch: Batch, answers: dict[int, Answer]) -> None:
    unended = batch.lines.filter(number__in=answers, state__in=OPEN_LINES)
    ended = list(unended.only("id", "number"))
    kept = [answers[line.number] for line in ended]
    for line, each in zip(ended, kept, strict=True):
        line.state = LineState.COMPLETED if each.succeeded else LineState.FAILED
        line.result = each.result or lines.pack(_without_response(batch, each))
        line.job = b""
    BatchLine.objects.bulk_update(ended, ["state", "result", "job"])
    succeeded = sum(each.succeeded for each in kept)
    Batch.objects.filter(id=batch.id).update(
        completed=F("completed") + succeeded,
        failed=F("failed") + len(kept) - succeeded,
        prompt_tokens=F("prompt_tokens") + sum(each.usage.prompt_tokens for each in kept),
        cached_tokens=F("cached_tokens") + sum(each.usage.cached_tokens for each in kept),
        completion_tokens=F("completion_tokens")
        + sum(each.usage.completion_tokens for each in kept),
        reasoning_tokens=F("reasoning_tokens") + sum(each.reasoning_tokens for each in kept),
    )


def _without_response(batch: Batch, each: Answer) -> dict[str, Any]:
    return lines.unanswered(BatchStatus.EXPIRED if each.timed_out else batch.outcome, each.attempts)
