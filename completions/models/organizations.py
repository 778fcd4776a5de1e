"""Who may use the service: organizations and their API keys."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from ipaddress import ip_network

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models, transaction
from django.db.models import Q
from django.utils import timezone


def _tokens(help_text: str) -> "models.PositiveBigIntegerField[int | None, int | None]":
    return models.PositiveBigIntegerField(null=True, blank=True, help_text=help_text)


def _cost(help_text: str) -> "models.DecimalField[Decimal | None, Decimal | None]":
    return models.DecimalField(
        null=True,
        blank=True,
        max_digits=12,
        decimal_places=4,
        validators=[MinValueValidator(0)],
        help_text=help_text,
    )


def _limit(help_text: str) -> "models.PositiveIntegerField[int | None, int | None]":
    return models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text=help_text
    )


def _priority(help_text: str) -> "models.SmallIntegerField[int, int]":
    return models.SmallIntegerField(
        default=0,
        validators=[MinValueValidator(-100), MaxValueValidator(100)],
        help_text=help_text,
    )


class Budgets(models.Model):
    """Limits on use; null means no limit. Days and months are in UTC.

    Each daily and monthly limit is also a field of `Budget` (jobs/limits.py) for budgets.lua.
    """

    daily_token_budget = _tokens("Prompt and completion tokens per day (UTC).")
    monthly_token_budget = _tokens("Prompt and completion tokens per month (UTC).")
    daily_cost_budget = _cost("Cost per day, at the prices in models.toml.")
    monthly_cost_budget = _cost("Cost per month, at the prices in models.toml.")
    max_enqueued_tokens = _tokens("Prompt tokens in unfinished batches.")

    class Meta:
        abstract = True


BUDGETS = [field.name for field in Budgets._meta.local_fields]


class MemberLimits(models.Model):
    """What members may make of keys. A new key of a member takes these limits; null means none."""

    keys_per_member = models.PositiveSmallIntegerField(
        default=5, db_default=5, help_text="Active keys that each member may own; 0 for none."
    )
    member_requests_per_minute = _limit("Of a member's new key.")
    member_tokens_per_minute = _limit("Of a member's new key.")
    member_max_concurrency = _limit("Of a member's new key.")
    member_daily_token_budget = _tokens("Of a member's new key.")
    member_monthly_token_budget = _tokens("Of a member's new key.")
    member_daily_cost_budget = _cost("Of a member's new key.")
    member_monthly_cost_budget = _cost("Of a member's new key.")

    class Meta:
        abstract = True


MEMBER_LIMITS = [field.name for field in MemberLimits._meta.local_fields]
MEMBER_PREFIX = "member_"
"""What is before the name of a column of ApiKey in the limit of members' keys."""


class Organization(Budgets, MemberLimits):
    """The owner of keys, jobs and usage. No organization sees another's data."""

    name = models.CharField(max_length=100, unique=True)
    store_prompts = models.BooleanField(
        default=False,
        help_text="Store the prompts and answers of new requests, and show them in the admin.",
    )
    suspended_at = models.DateTimeField(
        null=True, blank=True, help_text="While this is set, its keys are refused."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


@contextmanager
def lock_organization(organization_id: int) -> Iterator[None]:
    """Open a transaction that counts what an organization has, and adds to it: those of one
    organization run one after another.

    Other transactions may still insert rows that refer to the organization.
    """
    with transaction.atomic():
        Organization.objects.select_for_update(no_key=True).get(id=organization_id)
        yield


class Role(models.TextChoices):
    MEMBER = "member", "Member: its own usage"
    ADMIN = "admin", "Admin: the organization's usage and adapters"


class Scope(models.TextChoices):
    INFERENCE = "inference", "Completions, chats, tokens and grammars"
    BATCHES = "batches", "Files and batches"
    USAGE = "usage:read", "Read usage"
    HIDDEN_STATES = "hidden_states", "Ask for hidden states"


def all_scopes() -> list[str]:
    return list(Scope.values)


def validate_scopes(names: Iterable[str]) -> None:
    for name in names:
        if name not in Scope.values:
            raise ValidationError(
                f"{name!r} is not a scope. Use some of: {', '.join(Scope.values)}."
            )


def validate_networks(networks: Iterable[str]) -> None:
    """Check IP addresses and networks in CIDR notation. Raises ValidationError."""
    for network in networks:
        try:
            ip_network(network)
        except ValueError as error:
            raise ValidationError(f"{network!r} is not an address or a network: {error}") from error


def parse_public_id(text: str) -> str:
    """Return the public id in a secret or in the beginning of one, with or without `sk-`."""
    return text.removeprefix("sk-").partition("-")[0]


class ApiKeyQuerySet(models.QuerySet["ApiKey"]):
    def active(self) -> "ApiKeyQuerySet":
        """Select keys that are accepted now."""
        unexpired = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
        return self.filter(unexpired, revoked_at=None, organization__suspended_at=None)

    def with_organizations(self) -> "ApiKeyQuerySet":
        """Load what decides about requests too: the organizations, and their adapters."""
        return self.select_related("organization").prefetch_related("organization__adapters")

    def with_secrets(self, public_ids: Iterable[str]) -> "ApiKeyQuerySet":
        """Select keys whose current or previous secret has one of these public ids."""
        ids = [public_id for public_id in public_ids if public_id]
        return self.filter(Q(public_id__in=ids) | Q(previous_public_id__in=ids))


class ApiKey(Budgets):
    """A bearer secret, stored as a keyed digest only, and what its holder may do."""

    organization = models.ForeignKey(Organization, models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=100)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.SET_NULL,
        null=True,
        blank=True,
        editable=False,
        related_name="+",
        help_text="The member who made it.",
    )
    public_id = models.CharField(
        max_length=16, unique=True, help_text="The beginning of the secret."
    )
    digest = models.CharField(max_length=64, unique=True, editable=False)
    previous_public_id = models.CharField(max_length=16, blank=True, editable=False)
    # NULL before the first rotation: a unique column allows any number of NULLs.
    previous_digest = models.CharField(
        max_length=64, unique=True, null=True, blank=True, editable=False
    )
    previous_expires_at = models.DateTimeField(
        null=True, blank=True, help_text="The previous secret works until then."
    )
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.MEMBER)
    scopes = models.JSONField(
        default=all_scopes,
        blank=True,
        validators=[validate_scopes],
        help_text="What the key may do.",
    )
    allowed_models = models.JSONField(
        default=list, blank=True, help_text="Model ids that the key may use; empty for all."
    )
    allowed_networks = models.JSONField(
        default=list,
        blank=True,
        validators=[validate_networks],
        help_text="Addresses or CIDR networks that may use the key; empty for all.",
    )
    # The next three are limits: each has a row in contract/limits.py.
    requests_per_minute = _limit("Empty for no limit.")
    tokens_per_minute = _limit(
        "Prompt plus completion; reserved at the start, the rest is returned at the end."
    )
    max_concurrency = _limit("Calls, streams and background jobs at the same time.")
    default_priority = _priority("The priority of requests that set none, -100 to 100.")
    max_priority = _priority("The highest `priority` that a request may set, -100 to 100.")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="Accurate to a minute."
    )

    objects = ApiKeyQuerySet.as_manager()

    class Meta:
        ordering = ["organization", "name"]
        verbose_name = "API key"

    def __str__(self) -> str:
        return f"{self.name} (sk-{self.public_id}-…)"

    def clean(self) -> None:
        if self.default_priority > self.max_priority:
            message = f"must be at most max_priority, {self.max_priority}"
            raise ValidationError({"default_priority": message})

    def state(self, now: datetime) -> str:
        """Return `active`, `expired` or `revoked`."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "active"

    def working_public_ids(self, now: datetime) -> list[str]:
        """Return the public ids of its secrets: after a rotation two, until the grace of the old
        ends."""
        ends = self.previous_expires_at
        return [self.public_id, *([self.previous_public_id] if ends and ends > now else [])]
