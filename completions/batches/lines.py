"""One line of a batch: what the input may hold, how it is packed in SQL, what the output says."""

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
"""In the engine, where larger goes first: below anything that a client can ask for."""
RESULT_TTL = 10
"""Seconds in Redis once SQL has it: nobody follows a line, and a file has many, of some 7 KiB."""
AT_ONCE = 200
"""Lines with their results that are held in memory."""
_JOB_ID = re.compile(r"([0-9a-f]{32})-(\d+)$")


@dataclass(frozen=True, slots=True)
class PreparedLine:
    """A valid line: what its worker is told and what its response is built from."""

    model: str
    view: Mapping[str, Any]
    request: Mapping[str, Any]


def pack(document: Mapping[str, Any]) -> bytes:
    return zlib.compress(orjson.dumps(document), 1)


def unpack(packed: bytes) -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads(zlib.decompress(packed))
    return document


def job_of(batch: Batch, line: BatchLine) -> NewJob:
    """What is queued for a line that has not ended."""
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
        request_id=f"req_{packed['view']['id']}",  # as the line of the output file says
        limits=limits_of(batch.api_key),
        prices=entry.token_prices if entry else (),
        stored=batch.organization.store_prompts,
    )


def place_of(job_id: str) -> tuple[str, int]:
    """(batch id, line number) of a line's job."""
    match = _JOB_ID.search(job_id)
    if match is None:
        raise ValueError(f"{job_id} is no line's job")
    return f"batch_{match[1]}", int(match[2])


def in_order(batch: Batch) -> Iterator[BatchLine]:
    """All lines by number, a few in memory at a time."""
    number = 0
    while found := following(batch, number):
        yield from found
        number = found[-1].number


def following(batch: Batch, number: int) -> list[BatchLine]:
    """The next few lines after this number."""
    rows = batch.lines.order_by("number").defer("job")
    return list(rows.filter(number__gt=number)[:AT_ONCE])


_UNANSWERED: Mapping[str, dict[str, str]] = {
    BatchStatus.EXPIRED: {
        "code": "batch_expired",
        "message": "The completion window closed before this request was done.",
    },
    BatchStatus.CANCELLED: {
        "code": "batch_cancelled",
        "message": "The batch was cancelled before this request was done.",
    },
}
_CANCELLED_ALONE = {"code": "request_cancelled", "message": "This request alone was cancelled."}


def answered(response: Mapping[str, Any], attempts: int) -> dict[str, Any]:
    """The result of a line that was run, as often as workers began it."""
    return {"response": response, "error": None, "meta": {"attempts": attempts}}


def unanswered(outcome: str, attempts: int = 0) -> dict[str, Any]:
    """The result of a line that no response exists for."""
    error = _UNANSWERED.get(outcome, _CANCELLED_ALONE)
    return {"response": None, "error": error, "meta": {"attempts": attempts}}


def output_line(batch: Batch, line: BatchLine) -> bytes:
    """A line of the output or error file, with its end."""
    result = unpack(bytes(line.result)) if line.result else unanswered(batch.outcome)
    name = batch.request_id(line.number)
    return orjson.dumps({"id": name, "custom_id": line.custom_id, **result}) + b"\n"


def number_of(text: bytes) -> int:
    """Of a line of the output or error file, its number in the input file."""
    name: str = orjson.loads(text)["id"]
    return int(name.rpartition("-")[2])
