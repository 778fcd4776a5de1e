"""Durable jobs: those that must survive the loss of Redis, and the turns of sessions."""

from django.db import models
from django.utils import timezone

from completions.models.organizations import ApiKey, Organization
from completions.models.sessions import Session


class JobStatus(models.TextChoices):
    """The status that SQL knows: `queued` until the job has ended. Redis knows when it runs."""

    QUEUED = "queued"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Job(models.Model):
    """A durable job: stored before it is queued, and again with its result when it has ended."""

    id = models.CharField(primary_key=True, max_length=64)
    kind = models.CharField(max_length=10, default="background")
    organization = models.ForeignKey(Organization, models.CASCADE, related_name="jobs")
    api_key = models.ForeignKey(ApiKey, models.CASCADE, related_name="jobs")
    model = models.CharField(max_length=200)
    status = models.CharField(
        max_length=12, choices=JobStatus.choices, default=JobStatus.QUEUED, db_index=True
    )
    request = models.JSONField(help_text="The request for the worker.")
    context = models.JSONField(help_text="What responses are built from.")
    prices = models.JSONField(
        default=list, blank=True, help_text="Prices per token at submission, as in NewJob."
    )
    request_id = models.CharField(
        max_length=64, blank=True, help_text="The id of the HTTP request that created it."
    )
    created_at = models.DateTimeField(default=timezone.now, db_index=True)
    deadline_at = models.DateTimeField()
    promise = models.JSONField(
        null=True, blank=True, help_text="The forecast of its end when it was admitted."
    )
    ttl = models.PositiveIntegerField(help_text="Seconds for which the result is kept.")
    finished_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True, db_index=True)
    error_code = models.CharField(max_length=64, blank=True)
    route = models.CharField(
        max_length=64, blank=True, help_text="The route of the idempotency key."
    )
    idempotency_key = models.CharField(max_length=255, null=True, blank=True)  # noqa: DJ001
    body_digest = models.CharField(max_length=64, blank=True)
    events = models.BinaryField(null=True, help_text="The events, compressed, once it has ended.")
    session = models.ForeignKey(
        Session, models.CASCADE, null=True, blank=True, related_name="turns"
    )
    after_turn = models.CharField(
        max_length=64, blank=True, help_text="The turn that it comes after, in a session."
    )
    after_index = models.PositiveSmallIntegerField(default=0, help_text="The choice of that turn.")
    turn = models.BinaryField(null=True, help_text="What it adds to its session, compressed.")

    class Meta:
        ordering = ["-created_at"]
        indexes = [models.Index(fields=["organization", "created_at", "id"])]
        constraints = [
            # A job without a key stores NULL: a unique constraint allows any number of NULLs.
            models.UniqueConstraint(
                fields=["api_key", "route", "idempotency_key"], name="one_job_per_idempotency_key"
            ),
        ]

    def __str__(self) -> str:
        return self.id

    @classmethod
    def find_newest_turn(cls, session_id: str) -> str:
        """Return the id of the newest turn of a session, whatever became of it; empty if there is
        none."""
        turns = cls.objects.filter(session_id=session_id).order_by("-created_at", "-id")
        return turns.values_list("id", flat=True).first() or ""
