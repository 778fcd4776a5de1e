"""Who may use the service: organizations and their API keys."""

from collections.abc import Iterable
from datetime import datetime
from ipaddress import ip_network

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils import timezone


class Budgets(models.Model):
    """What may be spent and be waiting; empty means no limit. Days and months are those of UTC."""

    daily_token_budget = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="Prompt and completion tokens in a day."
    )
    monthly_token_budget = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="Prompt and completion tokens in a month."
    )
    daily_cost_budget = models.DecimalField(
        null=True, blank=True, max_digits=12, decimal_places=4,
        validators=[MinValueValidator(0)],
        help_text="At the prices in models.toml, in a day.",
    )  # fmt: skip
    monthly_cost_budget = models.DecimalField(
        null=True, blank=True, max_digits=12, decimal_places=4,
        validators=[MinValueValidator(0)],
        help_text="At the prices in models.toml, in a month.",
    )  # fmt: skip
    max_enqueued_tokens = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="Prompt tokens in batches that have not ended."
    )

    class Meta:
        abstract = True


class Organization(Budgets):
    """Who owns keys, jobs and usage; nothing of one is visible to another."""

    name = models.CharField(max_length=100, unique=True)
    store_prompts = models.BooleanField(
        default=False, help_text="Keep the prompts of ended requests for the admin's eyes."
    )
    suspended_at = models.DateTimeField(
        null=True, blank=True, help_text="None of its keys works while this is set."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Role(models.TextChoices):
    """Whose usage a key may see."""

    MEMBER = "member", "Member: its own usage"
    ADMIN = "admin", "Admin: the usage of the whole organization"


class Scope(models.TextChoices):
    """What a key may do."""

    INFERENCE = "inference", "Completions, chats, tokens and grammars"
    BATCHES = "batches", "Files and batches"
    USAGE = "usage:read", "Read usage"
    HIDDEN_STATES = "hidden_states", "Ask for hidden states"


def all_scopes() -> list[str]:
    return list(Scope.values)


def validate_scopes(names: Iterable[str]) -> None:
    """Raises ValidationError for what is no scope."""
    for name in names:
        if name not in Scope.values:
            raise ValidationError(f"{name!r} is no scope; there are: {', '.join(Scope.values)}")


def validate_networks(networks: Iterable[str]) -> None:
    """Raises ValidationError for what is neither an address nor a network in CIDR notation."""
    for network in networks:
        try:
            ip_network(network)
        except ValueError as error:
            raise ValidationError(f"{network!r} is no network: {error}") from error


class ApiKeyQuerySet(models.QuerySet["ApiKey"]):
    def active(self) -> "ApiKeyQuerySet":
        unexpired = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
        return self.filter(unexpired, revoked_at=None, organization__suspended_at=None)


class ApiKey(Budgets):
    """A bearer secret, of which only the keyed digest is stored, and what its holder may do."""

    organization = models.ForeignKey(Organization, models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=100)
    public_id = models.CharField(max_length=16, unique=True, help_text="Begins the secret.")
    digest = models.CharField(max_length=64, unique=True, editable=False)
    previous_public_id = models.CharField(max_length=16, blank=True, editable=False)
    # NULL is no digest, and no two NULLs are equal.
    previous_digest = models.CharField(
        max_length=64, unique=True, null=True, blank=True, editable=False
    )
    previous_expires_at = models.DateTimeField(
        null=True, blank=True, help_text="Until then the secret before the last rotation works."
    )
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.MEMBER)
    scopes = models.JSONField(
        default=all_scopes, blank=True, validators=[validate_scopes], help_text="What it may do."
    )
    allowed_models = models.JSONField(
        default=list, blank=True, help_text="Model ids this key may use; empty for all."
    )
    allowed_networks = models.JSONField(
        default=list, blank=True, validators=[validate_networks],
        help_text="Addresses or CIDR networks it may be used from; empty for all.",
    )  # fmt: skip
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
    default_priority = models.SmallIntegerField(
        default=0,
        validators=[MinValueValidator(-100), MaxValueValidator(100)],
        help_text="Of requests that do not name one, -100 to 100.",
    )
    max_priority = models.SmallIntegerField(
        default=0,
        validators=[MinValueValidator(-100), MaxValueValidator(100)],
        help_text="The largest `priority` that it may ask for, -100 to 100.",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="To within a minute."
    )

    objects = ApiKeyQuerySet.as_manager()

    class Meta:
        ordering = ["organization", "name"]
        verbose_name = "API key"

    def __str__(self) -> str:
        return f"{self.name} (sk-{self.public_id}-…)"

    def clean(self) -> None:
        if self.default_priority > self.max_priority:
            message = "must not be above max_priority"
            raise ValidationError({"default_priority": message})

    def state(self, now: datetime) -> str:
        """`active`, `expired` or `revoked`."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "active"
