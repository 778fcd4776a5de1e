"""Sessions: conversations whose exact token ids the service keeps."""

from django.db import models
from django.utils import timezone

from completions.models.organizations import ApiKey, Organization
from completions.models.timed_ids import new_id

SESSION_ID = "session_"


def new_session_id() -> str:
    return new_id(SESSION_ID)


class OnDrift(models.TextChoices):
    """What happens when a chat template would write earlier messages in another way."""

    KEEP = "keep"
    REBASE = "rebase"
    FAIL = "fail"


class Session(models.Model):
    """A tree of turns. Each turn is a job that names the choice after which it comes."""

    id = models.CharField(primary_key=True, max_length=64, default=new_session_id)
    organization = models.ForeignKey(Organization, models.CASCADE, related_name="sessions")
    api_key = models.ForeignKey(ApiKey, models.CASCADE, related_name="sessions")
    model = models.CharField(max_length=200)
    on_drift = models.CharField(max_length=8, choices=OnDrift.choices, default=OnDrift.KEEP)
    created_at = models.DateTimeField(default=timezone.now)
    seconds = models.PositiveIntegerField(help_text="How long it is kept after its last turn.")
    expires_at = models.DateTimeField(db_index=True)
    bytes = models.PositiveBigIntegerField(default=0, help_text="What its turns take, compressed.")

    class Meta:
        ordering = ["-created_at"]
        indexes = [models.Index(fields=["organization", "created_at", "id"])]

    def __str__(self) -> str:
        return self.id
