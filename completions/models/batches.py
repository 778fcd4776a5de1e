"""Batches and their lines. A line lives here from its validation until its result is in a file."""

import uuid
from datetime import timedelta

from django.db import models
from django.utils import timezone

from completions.models.organizations import ApiKey, Organization


class BatchStatus(models.TextChoices):
    """OpenAI's life cycle of a batch."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


UNFINISHED = (
    BatchStatus.VALIDATING,
    BatchStatus.IN_PROGRESS,
    BatchStatus.FINALIZING,
    BatchStatus.CANCELLING,
)


def new_batch_id() -> str:
    return f"batch_{uuid.uuid4().hex}"


class Batch(models.Model):
    """A file of requests. `total`, `completed` and `failed` count lines; the latter two only grow,
    in the transaction that stores a line's result."""

    id = models.CharField(primary_key=True, max_length=64, default=new_batch_id)
    organization = models.ForeignKey(Organization, models.CASCADE, related_name="batches")
    api_key = models.ForeignKey(ApiKey, models.CASCADE, related_name="batches")
    endpoint = models.CharField(max_length=64)
    model = models.CharField(max_length=200, blank=True, help_text="Of all its lines.")
    job_prefix = models.CharField(max_length=16, help_text="Of its lines' job ids.")
    input_file_id = models.CharField(max_length=64)
    completion_window = models.CharField(max_length=8)
    resubmission_of = models.CharField(max_length=64, blank=True)
    output_seconds = models.PositiveIntegerField(help_text="That its files are kept.")
    metadata = models.JSONField(null=True, blank=True)
    status = models.CharField(
        max_length=12, choices=BatchStatus.choices, default=BatchStatus.VALIDATING, db_index=True
    )
    outcome = models.CharField(
        max_length=12, choices=BatchStatus.choices, default=BatchStatus.COMPLETED,
        help_text="The status that it will end with.",
    )  # fmt: skip
    errors = models.JSONField(default=list, blank=True)
    total = models.PositiveIntegerField(default=0)
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    enqueued_tokens = models.PositiveBigIntegerField(
        default=0, help_text="In the prompts of all its lines."
    )
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)
    reasoning_tokens = models.PositiveBigIntegerField(
        default=0, help_text="Of the completion tokens."
    )
    idempotency_key = models.CharField(max_length=255, null=True, blank=True)  # noqa: DJ001
    body_digest = models.CharField(max_length=64, blank=True)
    pace = models.JSONField(default=list, help_text="Recent pairs of Unix time and lines ended.")
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(help_text="The completion window's end.")
    in_progress_at = models.DateTimeField(null=True, blank=True)
    finalizing_at = models.DateTimeField(null=True, blank=True)
    cancelling_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        verbose_name_plural = "batches"
        indexes = [models.Index(fields=["organization", "created_at", "id"])]
        constraints = [
            # NULL is no key, and no two NULLs are equal.
            models.UniqueConstraint(
                fields=["api_key", "idempotency_key"], name="one_batch_per_idempotency_key"
            ),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def ended(self) -> bool:
        return self.status not in UNFINISHED

    @property
    def window(self) -> timedelta:
        return timedelta(hours=int(self.completion_window.removesuffix("h")))

    @property
    def done(self) -> int:
        return self.completed + self.failed

    @property
    def output_file_id(self) -> str:
        """Of the lines that were answered. Known beforehand, so that it can be read meanwhile."""
        return f"file-{self._hex}0"

    @property
    def error_file_id(self) -> str:
        """Of all other lines."""
        return f"file-{self._hex}1"

    @staticmethod
    def id_of_file(file_id: str) -> str:
        """The batch that a file of this name would belong to."""
        return f"batch_{file_id.removeprefix('file-')[:-1]}"

    def job_id(self, number: int) -> str:
        """A line's job. The same whenever it is made, so that no line runs under two ids."""
        return f"{self.job_prefix_of(self.id)}{number}"

    def job_prefix_of(self, batch_id: str) -> str:
        """What the jobs of a batch of the same route begin with."""
        return f"{self.job_prefix}{batch_id.removeprefix('batch_')}-"

    def request_id(self, number: int) -> str:
        """What the output calls a line."""
        return f"batch_req_{self._hex}-{number}"

    @property
    def _hex(self) -> str:
        return self.id.removeprefix("batch_")


class LineState(models.IntegerChoices):
    WAITING = 0
    SENT = 1
    COMPLETED = 2
    FAILED = 3


OPEN_LINES = (LineState.WAITING, LineState.SENT)


class BatchLine(models.Model):
    """One request of a batch that has not ended."""

    batch = models.ForeignKey(Batch, models.CASCADE, related_name="lines")
    number = models.PositiveIntegerField(help_text="In the input file, from 1.")
    custom_id = models.CharField(max_length=512)
    state = models.PositiveSmallIntegerField(choices=LineState.choices, default=LineState.WAITING)
    prefix = models.CharField(max_length=64, help_text="Sorts lines whose prompts begin alike.")
    job = models.BinaryField(help_text="What is queued, packed; empty once it has ended.")
    result = models.BinaryField(null=True, help_text="Its line of the output, packed.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["batch", "number"], name="one_row_per_line"),
        ]
        indexes = [models.Index(fields=["batch", "state", "prefix", "number"])]

    def __str__(self) -> str:
        return f"{self.batch_id}:{self.number}"
