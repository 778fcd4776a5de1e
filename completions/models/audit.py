"""The audit trail of organizations, API keys and sign-ins, written by `accounts.audit` alone."""

from django.conf import settings
from django.db import models
from django.utils import timezone

from completions.models.organizations import Organization


class AuditAction(models.TextChoices):
    CREATED = "created"
    CHANGED = "changed"
    ROTATED = "rotated"
    REVOKED = "revoked"
    DELETED = "deleted"
    USED = "used"
    """An operator ran a request as the key, in the playground, or sent lines of its batch again."""
    SIGNED_IN = "signed_in"
    REFUSED = "refused"
    """A sign-in by OpenID Connect failed. `changes` has the reason."""


class AuditEntry(models.Model):
    """A change of an organization or an API key, or a sign-in. The entry outlives its object."""

    at = models.DateTimeField(default=timezone.now, db_index=True)
    actor = models.CharField(
        max_length=200, help_text="admin:NAME for a user of the admin, cli:NAME for a shell user."
    )
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+"
    )
    organization = models.ForeignKey(
        Organization, models.SET_NULL, null=True, blank=True, related_name="audit_entries"
    )
    action = models.CharField(max_length=10, choices=AuditAction.choices)
    object_type = models.CharField(max_length=20, help_text="organization, api_key or user")
    object_id = models.BigIntegerField()
    object_name = models.CharField(max_length=200)
    changes = models.JSONField(default=dict, help_text="By field: the old and the new value.")

    class Meta:
        ordering = ["-at", "-id"]
        verbose_name_plural = "audit entries"
        indexes = [models.Index(fields=["object_type", "object_id"])]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.object_type} {self.object_name}"
