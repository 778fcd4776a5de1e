"""One line of a batch: its job, its compressed form in SQL, and its line of output."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import orjson
from django.utils import timezone
from msgspec import Raw, Struct, structs

from completions.accounts.keys import read_limits
from completions.catalog import model_files
from completions.contract.job_request import JobRequest
from completions.contract.json_lines import compress_lines, decompress_lines
from completions.contract.strict_json import encode_line
from completions.exceptions import APIError, from_job_error
from completions.jobs.ended import EndedJob
from completions.jobs.new_job import FLEX_PRIORITY, NewJob
from completions.models import Batch, BatchLine, BatchStatus
from completions.responses.completion import ResponseContext

LINE_TTL = 10
"""Seconds that Redis keeps an ended line: nobody follows it, and each takes some 7 KiB."""
BATCH_SIZE = 200
"""Lines with results to hold in memory."""


class LineJob(Struct, frozen=True):
    """The part of a line's job that SQL keeps."""

    request: JobRequest
    context: Raw = Raw()
    view: Raw = Raw()
    """The context, as version 0.1.0 named it."""


class _LineContext(Struct, frozen=True):
    """What is read here of a response context."""

    id: str
    ignored_params: Sequence[str] = ()


def compress_job(request: JobRequest, context: ResponseContext) -> bytes:
    return compress_lines([msgspec.json.encode({"request": request, "context": context})])


def decompress_job(compressed: bytes | memoryview) -> LineJob:
    (line,) = decompress_lines(compressed)
    return msgspec.json.decode(line, type=LineJob)


def compress_json(document: Mapping[str, object]) -> bytes:
    return compress_lines([orjson.dumps(document)])


def decompress_json(compressed: bytes | memoryview) -> dict[str, object]:
    (line,) = decompress_lines(compressed)
    document: dict[str, object] = orjson.loads(line)
    return document


def make_job(batch: Batch, line: BatchLine) -> NewJob:
    job = decompress_job(line.job)
    context = bytes(job.context) or bytes(job.view)
    job_id = msgspec.json.decode(context, type=_LineContext).id
    entry = model_files.load_catalog().get(line.model)
    return NewJob(
        id=job_id,
        kind="batch",
        model=line.model,
        organization_id=batch.organization_id,
        api_key_id=batch.api_key_id,
        request=structs.replace(job.request, priority=FLEX_PRIORITY),
        context=context,
        seconds=(batch.expires_at - timezone.now()).total_seconds(),
        ttl=LINE_TTL,
        request_id=f"req_{job_id}",  # as in the output file
        limits=read_limits(batch.api_key),
        prices=entry.token_prices if entry else (),
        stored=batch.organization.store_prompts,
    )


def iterate_lines(batch: Batch) -> Iterator[BatchLine]:
    """Yield all lines by number, holding BATCH_SIZE in memory."""
    number = 0
    while page := read_next_lines(batch, number):
        yield from page
        number = page[-1].number


def read_next_lines(batch: Batch, number: int) -> list[BatchLine]:
    """Return the next BATCH_SIZE lines after this number."""
    rows = batch.lines.order_by("number").defer("job")
    return list(rows.filter(number__gt=number)[:BATCH_SIZE])


_UNANSWERED: Mapping[str, dict[str, str]] = {
    BatchStatus.EXPIRED: {
        "code": "batch_expired",
        "message": "The completion window closed before this request completed.",
    },
    BatchStatus.CANCELLED: {
        "code": "batch_cancelled",
        "message": "The batch was cancelled before this request completed.",
    },
}
_CANCELLED_ALONE = {
    "code": "request_cancelled",
    "message": "This request was cancelled; the rest of the batch was not.",
}


def make_refused_result(request_id: str, error: APIError, endpoint: str) -> dict[str, object]:
    """Make the result of a line that never runs, with the error that a live request would get."""
    response = {
        "status_code": error.status_code,
        "request_id": request_id,
        "body": error.envelope(endpoint, request_id),
    }
    return make_answered_result(response, {"attempts": 0})


def make_answered_result(
    response: Mapping[str, object], meta: Mapping[str, object]
) -> dict[str, object]:
    return {"response": response, "error": None, "meta": meta}


def make_unanswered_result(
    outcome: str, meta: Mapping[str, object] | None = None
) -> dict[str, object]:
    error = _UNANSWERED.get(outcome, _CANCELLED_ALONE)
    return {"response": None, "error": error, "meta": meta or {"attempts": 0}}


def make_meta(job: EndedJob) -> dict[str, object]:
    """Describe how a line ran: attempts by workers, seconds in the queue and with a worker, and
    paths in its body that had no effect, as in `x-ignored-params`."""
    meta: dict[str, object] = {"attempts": job.attempt}
    if job.started is not None:
        meta["queue_seconds"] = round(max(0.0, job.started - job.created), 3)
        meta["run_seconds"] = round(max(0.0, job.finished - job.started), 3)
    if ignored := msgspec.json.decode(job.context, type=_LineContext).ignored_params:
        meta["ignored_params"] = ignored
    return meta


def read_result(batch: Batch, line: BatchLine) -> dict[str, object]:
    """Return the result of a line of a batch that has ended, or of a line that has a result."""
    return decompress_json(line.result) if line.result else make_unanswered_result(batch.outcome)


def output_line(batch: Batch, line: BatchLine, result: Mapping[str, object]) -> bytes:
    """Return a line of the output or error file, including its newline."""
    name = batch.request_id(line.number)
    return encode_line({"id": name, "custom_id": line.custom_id, **result}) + b"\n"


def get_body(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the body of the response in a line of output; empty without a response."""
    return (line.get("response") or {}).get("body") or {}


def get_error(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the error in a line of output, whether or not it has a response; empty without one."""
    error = line.get("error") or get_body(line).get("error") or {}
    # Anthropic's shape of errors has the code among the details.
    return {**error, "code": error["details"]["error_code"]} if "details" in error else error


def get_text(choice: Mapping[str, Any]) -> Any:
    """Return the text of a choice of either route; None in a message that only calls tools."""
    return choice["message"]["content"] if "message" in choice else choice["text"]


def explain_error(code: str) -> str:
    """Return the message of a line's error code."""
    for error in (*_UNANSWERED.values(), _CANCELLED_ALONE):
        if error["code"] == code:
            return error["message"]
    return from_job_error(code).message


def parse_line_number(text: bytes) -> int:
    """Return the input line number of a line of the output or error file."""
    name: str = orjson.loads(text)["id"]
    return int(name.rpartition("-")[2])
