"""LoRA adapters that organizations registered while workers run."""

from django.db import models
from django.db.models import Q
from django.utils import timezone

from completions.contract.adapters import make_reference
from completions.models.organizations import Organization

MAX_NAME = 128


class AdapterQuerySet(models.QuerySet["Adapter"]):
    def active(self) -> "AdapterQuerySet":
        """Select the versions that new requests get."""
        return self.filter(retired_at=None)


class Adapter(models.Model):
    """One version of an adapter. It stays after its retirement until no job can need it."""

    organization = models.ForeignKey(Organization, models.CASCADE, related_name="adapters")
    model = models.CharField(max_length=200)
    name = models.CharField(max_length=MAX_NAME)
    version = models.PositiveIntegerField(help_text="1 for the first adapter of this name.")
    digest = models.CharField(max_length=64, db_index=True, help_text="SHA-256 of its files.")
    rank = models.PositiveIntegerField()
    bytes = models.PositiveBigIntegerField()
    source = models.TextField(help_text="The path that it was loaded from.")
    created_at = models.DateTimeField(default=timezone.now)
    retired_at = models.DateTimeField(
        null=True, blank=True, help_text="When it was replaced or unloaded."
    )

    objects = AdapterQuerySet.as_manager()

    class Meta:
        ordering = ["organization", "model", "name", "version"]
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "model", "name"],
                condition=Q(retired_at=None),
                name="one_active_version_per_adapter",
            )
        ]

    def __str__(self) -> str:
        return f"{self.model}:{self.name}, version {self.version}"

    @property
    def reference(self) -> str:
        """How jobs name it."""
        return make_reference(self.name, self.digest)
