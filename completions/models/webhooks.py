"""Webhooks: addresses that an operator registered, and each delivery to them."""

import base64
import re
import secrets
import uuid
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.db import models
from django.utils import timezone

from completions.models.organizations import Organization


class WebhookEvent(models.TextChoices):
    """The types of OpenAI's webhooks that an endpoint chooses from, and one of ours."""

    BATCH_COMPLETED = "batch.completed"
    BATCH_FAILED = "batch.failed"
    BATCH_EXPIRED = "batch.expired"
    BATCH_CANCELLED = "batch.cancelled"
    BUDGET_WARNING = "budget.warning"


TEST_EVENT = "webhook.test"
"""The type of an event that an operator sends to try an endpoint, whatever it has chosen."""

OVERLAP = timedelta(hours=24)
"""For how long after a rotation deliveries are signed with the earlier secret too."""


def all_events() -> list[str]:
    return list(WebhookEvent.values)


def new_secret() -> str:
    """Make a signing key as Standard Webhooks writes it: `whsec_` and 32 bytes in base64."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def new_event_id() -> str:
    return f"evt_{uuid.uuid4().hex}"


def validate_address(url: str) -> None:
    """Check that an address is https, or http, with a host and without a user."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ValidationError(f"{url!r} has no valid host or port.") from error
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise ValidationError(f"{url!r} is not an address that begins with https:// or http://.")
    if parts.username or parts.password or parts.fragment:
        raise ValidationError("An address must have neither a user nor a fragment.")
    if not re.fullmatch(r"[!-~]*", parts.path + parts.query):
        raise ValidationError("Percent-encode spaces and characters beyond ASCII in an address.")


class WebhookEndpoint(models.Model):
    """An address that gets the events of an organization."""

    organization = models.ForeignKey(Organization, models.CASCADE, related_name="webhooks")
    url = models.CharField(max_length=500, validators=[validate_address])
    secret = models.CharField(
        max_length=80, default=new_secret, editable=False, help_text="Signs each delivery."
    )
    previous_secret = models.CharField(max_length=80, blank=True, editable=False)
    previous_until = models.DateTimeField(
        null=True, editable=False, help_text="Until then the previous secret signs too."
    )
    events = models.JSONField(default=all_events, help_text="The types of events to send.")
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return self.url

    def rotate_secret(self, now: datetime) -> None:
        """Replace the secret and keep the earlier one for OVERLAP, so that the receiver has time to
        take the new one."""
        self.previous_secret, self.previous_until = self.secret, now + OVERLAP
        self.secret = new_secret()
        self.save(update_fields=["secret", "previous_secret", "previous_until"])

    def list_secrets(self, now: datetime) -> list[str]:
        """Return the secrets that sign a delivery at this time, the current one first."""
        overlaps = self.previous_until is not None and now < self.previous_until
        return [self.secret, self.previous_secret] if overlaps else [self.secret]


class WebhookDelivery(models.Model):
    """One event for one endpoint, until it is delivered or given up."""

    id = models.CharField(primary_key=True, max_length=64, default=new_event_id)
    endpoint = models.ForeignKey(WebhookEndpoint, models.CASCADE, related_name="deliveries")
    type = models.CharField(
        max_length=24, choices=[*WebhookEvent.choices, (TEST_EVENT, "Webhook Test")]
    )
    subject = models.CharField(max_length=64, help_text="The id of what the event is about.")
    data = models.JSONField(default=dict)
    created_at = models.DateTimeField(default=timezone.now)
    attempts = models.PositiveSmallIntegerField(default=0)
    due_at = models.DateTimeField(
        null=True,
        blank=True,
        default=timezone.now,
        db_index=True,
        help_text="When it is sent next; null once it is delivered or given up.",
    )
    delivered_at = models.DateTimeField(null=True, blank=True)
    status_code = models.PositiveSmallIntegerField(null=True, blank=True)
    error = models.CharField(max_length=200, blank=True, help_text="Of the last attempt.")
    history = models.JSONField(
        default=list, help_text="The latest attempts: `at`, `seconds`, `status_code`, `error`."
    )

    class Meta:
        verbose_name_plural = "webhook deliveries"
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["endpoint", "type", "subject"], name="one_delivery_per_event"
            )
        ]

    def __str__(self) -> str:
        return self.id
