"""Requests that users of the playground keep."""

from django.conf import settings
from django.db import models

from completions.models.organizations import Organization
from completions.models.timed_ids import new_id


def new_preset_id() -> str:
    return new_id("preset_")


class Preset(models.Model):
    """A user's request under a name. Any user who sees its organization may open it by its id."""

    id = models.CharField(primary_key=True, max_length=64, default=new_preset_id)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="presets")
    organization = models.ForeignKey(Organization, models.CASCADE, related_name="presets")
    name = models.CharField(max_length=100)
    draft = models.JSONField(help_text="What the form of the playground holds.")
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(fields=["user", "name"], name="one_preset_per_user_and_name")
        ]

    def __str__(self) -> str:
        return self.name
