"""Batches and their lines. A line is stored from its validation until its result is in a file."""

import re
from collections.abc import Sequence
from datetime import timedelta

from django.db import models
from django.utils import timezone

from completions.models.organizations import ApiKey, Organization
from completions.models.timed_ids import new_id
from completions.models.window import parse_window

BATCH_ID = "batch_"
_JOB_ID = re.compile(r"([0-9a-f]{32})-(\d+)$")


class BatchStatus(models.TextChoices):
    """The statuses of OpenAI's Batch object."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


class OnInvalid(models.TextChoices):
    """What a line with a refused body does to its batch."""

    SKIP = "skip", "goes to the error file; the others run"
    FAIL = "fail", "fails the batch before any line runs"


class OnLate(models.TextChoices):
    """What becomes of a request that will probably not end in its window."""

    ACCEPT = "accept", "it runs, and the answer says how likely its end in the window is"
    REFUSE = "refuse", "it is refused"


UNFINISHED = (
    BatchStatus.VALIDATING,
    BatchStatus.IN_PROGRESS,
    BatchStatus.FINALIZING,
    BatchStatus.CANCELLING,
)


def new_batch_id() -> str:
    return new_id(BATCH_ID)


class Batch(models.Model):
    """A file of requests that run as background work."""

    id = models.CharField(primary_key=True, max_length=64, default=new_batch_id)
    organization = models.ForeignKey(Organization, models.CASCADE, related_name="batches")
    api_key = models.ForeignKey(ApiKey, models.CASCADE, related_name="batches")
    endpoint = models.CharField(max_length=64)
    model = models.CharField(
        max_length=200, blank=True, help_text="The model of all lines; empty if they have several."
    )
    by_model = models.JSONField(
        default=dict,
        help_text="Of the lines of each model: plan, forecast, number, bytes, and the most tokens "
        "of their answers.",
    )
    job_prefix = models.CharField(max_length=16, help_text="The prefix of the lines' job ids.")
    input_file_id = models.CharField(max_length=64)
    completion_window = models.CharField(max_length=8)
    on_late = models.CharField(max_length=6, choices=OnLate.choices, default=OnLate.ACCEPT)
    promise = models.JSONField(
        null=True, blank=True, help_text="The forecast of its end when it was admitted."
    )
    outlook = models.JSONField(
        null=True, blank=True, help_text="The latest forecast of its end, and its turn by model."
    )
    resubmission_of = models.CharField(max_length=64, blank=True)
    output_seconds = models.PositiveIntegerField(help_text="How long its files are kept.")
    metadata = models.JSONField(null=True, blank=True)
    on_invalid = models.CharField(
        max_length=4,
        choices=OnInvalid.choices,
        default=OnInvalid.SKIP,
        help_text="What a line with a refused body does.",
    )
    status = models.CharField(
        max_length=12, choices=BatchStatus.choices, default=BatchStatus.VALIDATING, db_index=True
    )
    outcome = models.CharField(
        max_length=12,
        choices=BatchStatus.choices,
        default=BatchStatus.COMPLETED,
        help_text="The final status.",
    )
    errors = models.JSONField(default=list, blank=True)
    total = models.PositiveIntegerField(default=0, help_text="Lines in the file.")
    # Once the batch has begun, these two only grow, in the transaction that stores a line's result.
    completed = models.PositiveIntegerField(default=0, help_text="Lines that completed.")
    failed = models.PositiveIntegerField(default=0, help_text="Lines that failed.")
    enqueued_tokens = models.PositiveBigIntegerField(
        default=0, help_text="Tokens in the prompts of all lines."
    )
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)
    reasoning_tokens = models.PositiveBigIntegerField(
        default=0, help_text="The completion tokens that are reasoning."
    )
    counted_fields = models.JSONField(
        null=True,
        blank=True,
        help_text="Fields of the lines' JSON Schema whose values are counted; null without one.",
    )
    plan = models.JSONField(
        null=True,
        blank=True,
        help_text="Prompt tokens, those computed in the planned order, and in that of the file.",
    )
    pilot = models.PositiveIntegerField(
        null=True, blank=True, help_text="Lines, drawn at random, that run first for its forecast."
    )
    receipts = models.BooleanField(
        default=False, help_text="Whether each answered line says what computed it."
    )
    close = models.BooleanField(
        default=False,
        help_text="Constrained answers are closed at max_tokens, where a line does not say.",
    )
    held = models.BooleanField(default=False, help_text="Only the lines of the pilot run.")
    forecast = models.JSONField(
        null=True, blank=True, help_text="What is known of its lines before they run."
    )
    summary = models.JSONField(default=dict, help_text="See completions/batches/summary.py.")
    idempotency_key = models.CharField(max_length=255, null=True, blank=True)  # noqa: DJ001
    body_digest = models.CharField(max_length=64, blank=True)
    pace = models.JSONField(default=list, help_text="Recent samples: Unix time, lines ended.")
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(help_text="The end of the completion window.")
    in_progress_at = models.DateTimeField(null=True, blank=True)
    finalizing_at = models.DateTimeField(null=True, blank=True)
    cancelling_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        verbose_name_plural = "batches"
        indexes = [models.Index(fields=["organization", "created_at", "id"])]
        constraints = [
            # A batch without a key stores NULL: a unique constraint allows any number of NULLs.
            models.UniqueConstraint(
                fields=["api_key", "idempotency_key"], name="one_batch_per_idempotency_key"
            ),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def name(self) -> str:
        """The name that its metadata gives it; empty without one."""
        return str((self.metadata or {}).get("name", ""))

    @property
    def has_ended(self) -> bool:
        return self.status not in UNFINISHED

    @property
    def model_ids(self) -> Sequence[str]:
        """The models that its lines ask for."""
        return tuple(self.by_model) or ((self.model,) if self.model else ())

    @property
    def window(self) -> timedelta:
        return parse_window(self.completion_window)

    @property
    def done(self) -> int:
        return self.completed + self.failed

    @property
    def refused(self) -> int:
        """How many lines of a batch with a pilot are refused, and so never run."""
        return self.total - int(self.forecast["lines"]) if self.forecast else 0

    @property
    def output_file_id(self) -> str:
        """The file of the lines with a response. Its id is fixed, so clients can read it early."""
        return f"file-{self._hex}0"

    @property
    def error_file_id(self) -> str:
        """The file of all other lines."""
        return f"file-{self._hex}1"

    @staticmethod
    def parse_file_id(file_id: str) -> str:
        """Return the id of the batch that writes the file with this id."""
        return f"batch_{file_id.removeprefix('file-')[:-1]}"

    def job_id(self, number: int) -> str:
        """Return the id of a line's job. It is deterministic, so no line runs under two ids."""
        return f"{self.make_job_prefix(self.id)}{number}"

    def make_job_prefix(self, batch_id: str) -> str:
        """Return the prefix of the job ids of a batch with the same endpoint."""
        return f"{self.job_prefix}{batch_id.removeprefix('batch_')}-"

    @property
    def job_ids(self) -> tuple[str, str]:
        """Exclusive bounds for a range scan over this batch's job ids. Uses only digits, because
        collations order punctuation such as ~ differently."""
        prefix = self.make_job_prefix(self.id)
        return f"{prefix}0", f"{prefix}9999999999"

    def request_id(self, number: int) -> str:
        return f"batch_req_{self._hex}-{number}"

    @property
    def _hex(self) -> str:
        return self.id.removeprefix("batch_")


def parse_job_id(job_id: str) -> tuple[str, int]:
    """Return (batch id, line number) for the id of a line's job. Raises ValueError."""
    match = _JOB_ID.search(job_id)
    if match is None:
        raise ValueError(f"{job_id} is not the job of a line")
    return f"{BATCH_ID}{match[1]}", int(match[2])


class LineState(models.IntegerChoices):
    WAITING = 0
    SENT = 1
    COMPLETED = 2
    FAILED = 3


OPEN_LINES = (LineState.WAITING, LineState.SENT)


class BatchLine(models.Model):
    batch = models.ForeignKey(Batch, models.CASCADE, related_name="lines")
    number = models.PositiveIntegerField(help_text="The line number in the input file, from 1.")
    custom_id = models.CharField(max_length=512)
    model = models.CharField(max_length=200, blank=True, help_text="The model that runs it.")
    state = models.PositiveSmallIntegerField(choices=LineState.choices, default=LineState.WAITING)
    position = models.PositiveIntegerField(default=0, help_text="Lines are sent in this order.")
    job = models.BinaryField(help_text="The job, compressed; empty after its end.")
    result = models.BinaryField(null=True, help_text="The output line, compressed.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["batch", "number"], name="one_row_per_line"),
        ]
        indexes = [models.Index(fields=["batch", "state", "model", "position", "number"])]

    def __str__(self) -> str:
        return f"{self.batch_id}:{self.number}"
