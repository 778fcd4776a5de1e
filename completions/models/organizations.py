"""Who may use the service: organizations and their API keys."""

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils import timezone


class Organization(models.Model):
    """Who owns keys, jobs and usage; nothing of one is visible to another."""

    name = models.CharField(max_length=100, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class ApiKeyQuerySet(models.QuerySet["ApiKey"]):
    def active(self) -> "ApiKeyQuerySet":
        unexpired = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
        return self.filter(unexpired, revoked_at=None)


class ApiKey(models.Model):
    """A bearer secret, of which only the keyed digest is stored."""

    organization = models.ForeignKey(Organization, models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=100)
    public_id = models.CharField(max_length=16, unique=True, help_text="Begins the secret.")
    digest = models.CharField(max_length=64, unique=True, editable=False)
    allowed_models = models.JSONField(
        default=list, blank=True, help_text="Model ids this key may use; empty for all."
    )
    requests_per_minute = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text="Empty: no limit."
    )
    tokens_per_minute = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="Prompt and completion together; reserved at the start, the rest given back.",
    )
    max_concurrency = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="Calls and streams at a time; background jobs do not count.",
    )
    max_priority = models.PositiveSmallIntegerField(
        default=0,
        validators=[MaxValueValidator(100)],
        help_text="The largest `priority` that it may ask for, up to 100.",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    objects = ApiKeyQuerySet.as_manager()

    class Meta:
        ordering = ["organization", "name"]
        verbose_name = "API key"

    def __str__(self) -> str:
        return f"{self.name} (sk-{self.public_id}-…)"
