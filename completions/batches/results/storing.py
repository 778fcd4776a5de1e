"""Results of lines. Each is stored and counted once, in one transaction."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from django.db.models import F

from completions.batches import lines
from completions.batches.receipts.receipt import BuildOf, make_receipt
from completions.batches.results.answers import count_tokens
from completions.batches.summary import Summary
from completions.catalog import model_files
from completions.catalog.model_files import ModelFilesError
from completions.contract.usage import Usage
from completions.database.updates import update_each
from completions.jobs.ended import EndedJob
from completions.models import OPEN_LINES, Batch, BatchLine, BatchStatus, LineState
from completions.models.batches import parse_job_id
from completions.responses.whole_response import make_whole_response

_TIMEOUTS = ("queue_timeout", "generation_timeout")
"""Codes of jobs whose deadline has passed. The deadline of a line is the batch's expiry."""


@dataclass(frozen=True, slots=True)
class Answer:
    batch_id: str
    number: int
    succeeded: bool
    usage: Usage
    reasoning_tokens: int
    """Completion tokens that are reasoning."""
    result: Mapping[str, object] | None
    """The output line without its id; None if there is no response."""
    timed_out: bool
    meta: Mapping[str, object]
    worker: str
    """The id of the worker that ran it."""
    stream: Sequence[bytes]
    """The job's events."""


def make_answer(job: EndedJob) -> Answer:
    batch_id, number = parse_job_id(job.id)
    timed_out = job.error is not None and job.error.code in _TIMEOUTS
    meta = lines.make_meta(job)
    result, succeeded, reasoning = None, False, 0
    if job.state != "cancelled" and not timed_out:
        status, body = make_whole_response(job)
        response = {"status_code": status, "request_id": f"req_{job.id}", "body": body}
        result = lines.make_answered_result(response, meta)
        succeeded = status < 300
        reasoning = count_tokens(body)["reasoning_tokens"]
    usage = job.usage or Usage(0, 0)
    return Answer(
        batch_id,
        number,
        succeeded,
        usage,
        reasoning,
        result,
        timed_out,
        meta,
        job.worker,
        job.stream,
    )


def store_answers(answers: Iterable[Answer], build_of: BuildOf) -> None:
    """Store results for lines that have none. Runs in the caller's transaction."""
    by_batch: dict[str, dict[int, Answer]] = defaultdict(dict)
    for each in answers:
        by_batch[each.batch_id][each.number] = each
    for batch in Batch.objects.select_for_update().filter(id__in=by_batch).order_by("id"):
        _store_answers(batch, by_batch[batch.id], build_of)


def _make_receipt(line: BatchLine, answer: Answer, build_of: BuildOf) -> dict[str, object] | None:
    """Make the receipt of an answered line; None if the model's files have been removed."""
    entry = model_files.load_catalog().get(line.model)
    request = lines.decompress_job(line.job).request
    try:
        files = model_files.load(entry) if entry else None
    except ModelFilesError:
        return None
    if files is None:
        return None
    return make_receipt(request, files, answer.stream, build_of(answer.worker))


def _store_answers(batch: Batch, answers: dict[int, Answer], build_of: BuildOf) -> None:
    unended = batch.lines.filter(number__in=answers, state__in=OPEN_LINES)
    columns = ("id", "number", "model", *(("job",) if batch.receipts else ()))
    ended = list(unended.only(*columns))
    in_order = [answers[line.number] for line in ended]
    summary = Summary(batch.counted_fields, batch.summary)
    rows = []
    for line, each in zip(ended, in_order, strict=True):
        outcome = BatchStatus.EXPIRED if each.timed_out else batch.outcome
        result = each.result or lines.make_unanswered_result(outcome, each.meta)
        if batch.receipts and each.succeeded:
            result = {**result, "receipt": _make_receipt(line, each, build_of)}
        summary.add(result, "" if batch.model else line.model)
        state = LineState.COMPLETED if each.succeeded else LineState.FAILED
        rows.append((state, lines.compress_json(result), b"", line.pk))
    if not rows:
        return
    update_each(BatchLine, ("state", "result", "job"), ("id",), rows)
    gained: Counter[str] = Counter()
    for each in in_order:
        gained["completed" if each.succeeded else "failed"] += 1
        gained["reasoning_tokens"] += each.reasoning_tokens
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
            gained[name] += getattr(each.usage, name)
    if gained:
        more = {name: F(name) + count for name, count in gained.items()}
        Batch.objects.filter(id=batch.id).update(**more, summary=summary.as_dict())
