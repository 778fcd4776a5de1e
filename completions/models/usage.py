"""Usage: one record per ended job, and hourly sums, which outlive the records."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from django.db import models
from django.db.models import F, Q

from completions.contract.json_lines import decompress_lines
from completions.models.jobs import JobStatus
from completions.models.organizations import ApiKey, Organization

NANOS = 10**9
"""Billionths per unit of the operator's currency. Integers add up exactly in every database."""

BOUNDS_MS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 300_000)
"""Upper bounds (inclusive) of the histogram buckets in ms; the last bucket has none."""
LATENCY = tuple(f"latency_{i}" for i in range(len(BOUNDS_MS) + 1))
"""Columns of UsageHour: requests by the time from arrival to end."""
FIRST_TOKEN = tuple(f"first_token_{i}" for i in range(len(BOUNDS_MS) + 1))
"""Columns of UsageHour: requests by the time from arrival to the first token."""


class UsageRecord(models.Model):
    """The usage of one ended job. It is written exactly once, even after a crash."""

    job_id = models.CharField(max_length=64, unique=True)
    request_id = models.CharField(
        max_length=64, blank=True, db_index=True, help_text="The x-request-id of the response."
    )
    organization = models.ForeignKey(Organization, models.CASCADE, related_name="usage")
    api_key = models.ForeignKey(ApiKey, models.CASCADE, related_name="usage")
    model = models.CharField(max_length=200)
    adapter = models.CharField(max_length=200, blank=True)
    kind = models.CharField(max_length=10, help_text="sync, stream, background or batch")
    status = models.CharField(max_length=12, choices=JobStatus.choices)
    error_code = models.CharField(max_length=64, blank=True)
    cancelled_by = models.CharField(
        max_length=12, blank=True, help_text="client, hang-up, operator, batch or web"
    )
    prompt_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(default=0)
    completion_tokens = models.PositiveIntegerField(default=0)
    forced_tokens = models.PositiveIntegerField(
        default=0, help_text="Completion tokens that the grammar forced."
    )
    cost_nanos = models.PositiveBigIntegerField(
        default=0, help_text="In billionths of the currency, at the prices of its submission."
    )
    queued_ms = models.PositiveIntegerField(
        null=True, help_text="From arrival to the worker's claim."
    )
    first_token_ms = models.PositiveIntegerField(
        null=True, help_text="From arrival to the first token."
    )
    run_ms = models.PositiveIntegerField(null=True, help_text="From the claim to the end.")
    attempts = models.PositiveSmallIntegerField(default=0, help_text="Attempts by workers.")
    worker = models.CharField(max_length=200, blank=True, help_text="The last worker that ran it.")
    parameters = models.JSONField(
        default=dict, blank=True, help_text="Of the request, without the prompt."
    )
    created_at = models.DateTimeField()
    finished_at = models.DateTimeField(db_index=True)

    class Meta:
        ordering = ["-finished_at"]
        verbose_name = "request"
        indexes = [
            models.Index(fields=["api_key", "finished_at"]),
            models.Index(fields=["organization", "finished_at"]),
            models.Index(fields=["model", "finished_at"]),
            models.Index(fields=["status", "finished_at"]),
        ]

    def __str__(self) -> str:
        return self.job_id

    @property
    def latency_ms(self) -> int:
        """Milliseconds from arrival to end."""
        if self.queued_ms is not None and self.run_ms is not None:
            return self.queued_ms + self.run_ms
        return round((self.finished_at - self.created_at).total_seconds() * 1000)


LATENCY_MS = F("queued_ms") + F("run_ms")
"""`UsageRecord.latency_ms` in SQL; NULL for a job that no worker claimed."""


class StoredPrompt(models.Model):
    """The request and the events of an ended job, if its organization wants prompts stored."""

    job_id = models.CharField(primary_key=True, max_length=64)
    organization = models.ForeignKey(Organization, models.CASCADE, related_name="prompts")
    request = models.BinaryField(help_text="The request for the worker, compressed.")
    events = models.BinaryField(
        null=True, help_text="The response context, then the job's events, compressed."
    )
    created_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return self.job_id

    def document(self) -> dict[str, Any]:
        """Return the request: prompts, sampling, grammar."""
        (line,) = decompress_lines(self.request)
        request: dict[str, object] = orjson.loads(line)
        return request


class UsageHour(models.Model):
    """Sums over the jobs of one key, model, adapter, kind and batch that ended in one hour (UTC).

    After QUIRE_USAGE_HOUR_DAYS, the hours of a day are added to its first hour. The columns in
    LATENCY and FIRST_TOKEN are histograms of completed jobs without lines of batches.
    """

    organization = models.ForeignKey(Organization, models.CASCADE, related_name="usage_hours")
    api_key = models.ForeignKey(ApiKey, models.CASCADE, related_name="usage_hours")
    model = models.CharField(max_length=200)
    adapter = models.CharField(max_length=200, blank=True)
    kind = models.CharField(
        max_length=10, blank=True, help_text="As in UsageRecord; empty before it was summed."
    )
    batch = models.CharField(
        max_length=64, blank=True, help_text="The batch of the lines; empty for other jobs."
    )
    hour = models.DateTimeField(db_index=True, help_text="The beginning of the hour.")
    requests = models.PositiveBigIntegerField(default=0)
    failed = models.PositiveBigIntegerField(default=0)
    cancelled = models.PositiveBigIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)
    forced_tokens = models.PositiveBigIntegerField(default=0)
    cost_nanos = models.PositiveBigIntegerField(default=0)

    class Meta:
        ordering = ["-hour"]
        verbose_name = "hourly usage"
        verbose_name_plural = "hourly usage"
        indexes = [models.Index(fields=["organization", "hour"])]
        constraints = [
            models.UniqueConstraint(
                fields=["api_key", "hour", "model", "adapter", "kind", "batch"],
                name="one_row_per_key_and_hour",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H:00} {self.model}"


for _name in LATENCY + FIRST_TOKEN:
    UsageHour.add_to_class(_name, models.PositiveIntegerField(default=0))


@dataclass(frozen=True, slots=True)
class UsageCount:
    """A column of UsageHour that counts what the records of its jobs say."""

    name: str
    public_name: str
    """Its name in GET /v1/usage."""
    example: int
    """Its value in the example of the OpenAPI document."""
    measure: Callable[[UsageRecord], int] | None = None
    """What one record adds, no boolean, which PostgreSQL cannot add; by default its column of the
    same name."""

    def count(self, record: UsageRecord) -> int:
        if self.measure is not None:
            return self.measure(record)
        count: int = getattr(record, self.name)
        return count


USAGE_COUNTS = (
    UsageCount("requests", "num_model_requests", 4, lambda record: 1),
    UsageCount(
        "failed", "num_failed_requests", 0, lambda each: int(each.status == JobStatus.FAILED)
    ),
    UsageCount(
        "cancelled",
        "num_cancelled_requests",
        1,
        lambda each: int(each.status == JobStatus.CANCELLED),
    ),
    UsageCount("prompt_tokens", "input_tokens", 120),
    UsageCount("cached_tokens", "input_cached_tokens", 32),
    UsageCount("completion_tokens", "output_tokens", 64),
    UsageCount("forced_tokens", "forced_tokens", 20),
)
"""What the ledger, reports, GET /v1/usage and its document say of a group of jobs, besides costs
and percentiles."""
SUMMED = (*(each.name for each in USAGE_COUNTS), "cost_nanos")
"""Columns of UsageHour that are sums."""
COUNTED = (*SUMMED, *LATENCY, *FIRST_TOKEN)
"""All columns of UsageHour that add up: sums and histograms."""


class LoadSample(models.Model):
    """The load of a model's workers at one moment. One sample is taken per minute."""

    at = models.DateTimeField()
    model = models.CharField(max_length=200)
    workers = models.PositiveIntegerField(default=0)
    slots = models.PositiveIntegerField(default=0, help_text="Sequences that the workers can run.")
    running = models.PositiveIntegerField(default=0, help_text="Sequences that ran.")
    queued_interactive = models.PositiveIntegerField(default=0, help_text="Calls and streams.")
    queued_background = models.PositiveIntegerField(default=0)
    queued_batch = models.PositiveIntegerField(default=0, help_text="Lines of batches.")

    class Meta:
        ordering = ["-at"]
        constraints = [
            models.UniqueConstraint(fields=["model", "at"], name="one_sample_per_minute"),
        ]
        indexes = [models.Index(fields=["at"])]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M} {self.model}"


class BudgetWarningQuerySet(models.QuerySet["BudgetWarning"]):
    def current(self, now: datetime) -> "list[BudgetWarning]":
        """Select the warnings of the current day and month, the highest one for each budget."""
        day = now.date()
        rows = self.select_related("organization", "api_key").filter(
            Q(budget__startswith="daily", period=day)
            | Q(budget__startswith="monthly", period=day.replace(day=1))
        )
        return list({(row.scope, row.budget): row for row in rows.order_by("percent")}.values())


class BudgetWarning(models.Model):
    """A key or an organization has used most of a budget. One row per period and share."""

    organization = models.ForeignKey(Organization, models.CASCADE, related_name="budget_warnings")
    api_key = models.ForeignKey(
        ApiKey,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="budget_warnings",
        help_text="Null for the organization's own budget.",
    )
    scope = models.CharField(max_length=24, help_text="k and a key id, or o and an organization id")
    budget = models.CharField(max_length=24, help_text="The field of the budget.")
    period = models.DateField(help_text="The day, or the first day of the month, in UTC.")
    percent = models.PositiveSmallIntegerField(help_text="The share of the budget that was passed.")
    created_at = models.DateTimeField(auto_now_add=True)

    objects = BudgetWarningQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["scope", "budget", "period", "percent"], name="one_budget_warning"
            )
        ]

    def __str__(self) -> str:
        owner = f"Key {self.api_key.name}" if self.api_key else self.organization.name
        period, what, _ = self.budget.split("_")
        return f"{owner} has used {self.percent} % of its {period} {what} budget."
