"""The batches of the example data: one for the lines of each night, and some that went wrong."""

import random
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from completions.models import ApiKey, Batch, BatchStatus, File, FilePurpose, UsageRecord
from completions.models.batches import BATCH_ID

_JOB_PREFIX = "cmpl-"


@dataclass(slots=True)
class _Night:
    """The batch of one day, as far as its lines are made."""

    batch: Batch
    began_at: datetime
    ended_at: datetime


class Nights:
    """One completed batch per day, whose lines are the records of the kind batch."""

    def __init__(self, model: str, chance: random.Random) -> None:
        self._model = model
        self._chance = chance
        self._nights: dict[date, _Night] = {}

    def take_lines(self, records: Iterable[UsageRecord]) -> None:
        """Give each line among new records its number in the batch of its day."""
        for record in records:
            if record.kind == "batch":
                self._take_line(record)

    def _take_line(self, record: UsageRecord) -> None:
        day = record.finished_at.date()
        if (night := self._nights.get(day)) is None:
            hexadecimal = uuid.UUID(int=self._chance.getrandbits(128)).hex
            batch = Batch(id=f"{BATCH_ID}{hexadecimal}", job_prefix=_JOB_PREFIX)
            night = self._nights[day] = _Night(batch, record.created_at, record.finished_at)
        batch = night.batch
        batch.total += 1
        batch.completed += record.status == "completed"
        batch.failed += record.status != "completed"
        batch.prompt_tokens += record.prompt_tokens
        batch.cached_tokens += record.cached_tokens
        batch.completion_tokens += record.completion_tokens
        night.began_at = min(night.began_at, record.created_at)
        night.ended_at = record.finished_at
        record.job_id = batch.job_id(batch.total)
        record.request_id = f"req_{record.job_id}"

    def save(self, key: ApiKey, now: datetime) -> None:
        for night in self._nights.values():
            created = night.began_at - timedelta(minutes=2)
            night.batch.status, night.batch.created_at = BatchStatus.COMPLETED, created
            night.batch.model, night.batch.ended_at = self._model, night.ended_at
            _save(night.batch, key, now)


def make_stories(key: ApiKey, model: str, now: datetime) -> None:
    """Create batches that have ended otherwise; the service would run open ones."""
    stories = (
        (BatchStatus.EXPIRED, 32, 9000, 7204, 41),
        (BatchStatus.CANCELLED, 56, 2500, 610, 0),
        (BatchStatus.FAILED, 80, 0, 0, 0),
    )
    for status, hours_ago, total, completed, failed in stories:
        created = now - timedelta(hours=hours_ago)
        lasted = timedelta(minutes=3 if status == BatchStatus.FAILED else 140)
        batch = Batch(
            job_prefix=_JOB_PREFIX,
            status=status,
            model=model,
            created_at=created,
            ended_at=created + lasted,
            errors=_REFUSED if status == BatchStatus.FAILED else [],
            total=total,
            completed=completed,
            failed=failed,
            prompt_tokens=2200 * completed,
            cached_tokens=440 * completed,
            completion_tokens=180 * completed,
        )
        _save(batch, key, now)


def _save(batch: Batch, key: ApiKey, now: datetime) -> None:
    """Store a batch of which its model, status, times and counts are set, with its file."""
    created, status = batch.created_at, batch.status
    owner = {"organization_id": key.organization_id, "api_key": key}
    file = File(
        **owner,
        filename="example-documents.jsonl",
        purpose=FilePurpose.BATCH,
        bytes=1500 * (batch.total or 900),
        content="example/none",  # no content is stored
        created_at=created,
        expires_at=now + timedelta(days=20),
    )
    file.save(force_insert=True)
    fields = {
        **owner,
        "endpoint": "/v1/completions",
        "input_file_id": file.id,
        "completion_window": "24h",
        "output_seconds": 86400,
        "outcome": status,
        "expires_at": created + timedelta(hours=24),
        "in_progress_at": None if status == BatchStatus.FAILED else created + timedelta(minutes=1),
        "cancelling_at": batch.ended_at if status == BatchStatus.CANCELLED else None,
    }
    for name, value in fields.items():
        setattr(batch, name, value)
    batch.save(force_insert=True)


_REFUSED = [
    {
        "code": "invalid_value",
        "line": 17,
        "param": "max_tokens",
        "message": "max_tokens must be an integer of at least 0.",
    },
]
