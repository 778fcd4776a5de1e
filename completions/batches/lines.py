"""One line of a batch: its job, its compressed form in SQL, and its line of output."""

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from completions.accounts.keys import limits_of
from completions.catalog import model_files
from completions.jobs.record import NewJob
from completions.models import Batch, BatchLine, BatchStatus

PRIORITY = -1_000_000
"""Engine priority, where higher runs first: below every priority that a client can set."""
RESULT_TTL = 10
"""Seconds that Redis keeps an ended line: nobody follows it, and each takes some 7 KiB."""
AT_ONCE = 200
"""Lines with results to hold in memory."""
_JOB_ID = re.compile(r"([0-9a-f]{32})-(\d+)$")


@dataclass(frozen=True, slots=True)
class PreparedLine:
    """A valid line: the request for the worker, and what the response is built from."""

    model: str
    view: Mapping[str, Any]
    request: Mapping[str, Any]


def pack(document: Mapping[str, Any]) -> bytes:
    """Serialize and compress a JSON object."""
    return zlib.compress(orjson.dumps(document), 1)


def unpack(packed: bytes) -> dict[str, Any]:
    """Undo `pack`."""
    document: dict[str, Any] = orjson.loads(zlib.decompress(packed))
    return document


def job_of(batch: Batch, line: BatchLine) -> NewJob:
    """Return the job of a line that has not ended."""
    packed = unpack(bytes(line.job))
    entry = model_files.served_models().get(batch.model)
    return NewJob(
        id=packed["view"]["id"],
        kind="batch",
        model=batch.model,
        organization_id=batch.organization_id,
        api_key_id=batch.api_key_id,
        request={**packed["request"], "priority": PRIORITY},
        view=packed["view"],
        deadline=batch.expires_at.timestamp(),
        ttl=RESULT_TTL,
        request_id=f"req_{packed['view']['id']}",  # as in the output file
        limits=limits_of(batch.api_key),
        prices=entry.token_prices if entry else (),
        stored=batch.organization.store_prompts,
    )


def place_of(job_id: str) -> tuple[str, int]:
    """Return (batch id, line number) for the id of a line's job. Raises ValueError."""
    match = _JOB_ID.search(job_id)
    if match is None:
        raise ValueError(f"{job_id} is not the job of a line")
    return f"batch_{match[1]}", int(match[2])


def in_order(batch: Batch) -> Iterator[BatchLine]:
    """Yield all lines by number, holding AT_ONCE in memory."""
    number = 0
    while found := following(batch, number):
        yield from found
        number = found[-1].number


def following(batch: Batch, number: int) -> list[BatchLine]:
    """Return the next AT_ONCE lines after this number."""
    rows = batch.lines.order_by("number").defer("job")
    return list(rows.filter(number__gt=number)[:AT_ONCE])


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


def answered(response: Mapping[str, Any], attempts: int) -> dict[str, Any]:
    """Return the result of a line with a response."""
    return {"response": response, "error": None, "meta": {"attempts": attempts}}


def unanswered(outcome: str, attempts: int = 0) -> dict[str, Any]:
    """Return the result of a line without a response."""
    error = _UNANSWERED.get(outcome, _CANCELLED_ALONE)
    return {"response": None, "error": error, "meta": {"attempts": attempts}}


def output_line(batch: Batch, line: BatchLine) -> bytes:
    """Return a line of the output or error file, including its newline."""
    result = unpack(bytes(line.result)) if line.result else unanswered(batch.outcome)
    name = batch.request_id(line.number)
    return orjson.dumps({"id": name, "custom_id": line.custom_id, **result}) + b"\n"


def number_of(text: bytes) -> int:
    """Return the input line number of a line of the output or error file."""
    name: str = orjson.loads(text)["id"]
    return int(name.rpartition("-")[2])
