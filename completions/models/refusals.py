"""Requests that were refused, counted by hour: of known keys, and with keys that are not valid."""

from django.db import models

from completions.models.organizations import ApiKey, Organization

MESSAGE_LENGTH = 500
"""Characters of a refusal's message that are stored."""


ADDRESS_LENGTH = 45
"""Characters of the longest IPv6 address, one with an IPv4 address in it."""


class Refusal(models.Model):
    """The refused requests of one key with one error code in one hour (UTC).

    A job that failed is no refusal: it has a `UsageRecord`.
    """

    organization = models.ForeignKey(Organization, models.CASCADE, related_name="refusals")
    api_key = models.ForeignKey(ApiKey, models.CASCADE, related_name="refusals")
    code = models.CharField(max_length=64)
    hour = models.DateTimeField(db_index=True, help_text="The beginning of the hour.")
    count = models.PositiveBigIntegerField(default=0)
    at = models.DateTimeField(help_text="When the latest of them was refused.")
    message = models.CharField(max_length=MESSAGE_LENGTH, help_text="The answer to the latest.")
    request_id = models.CharField(max_length=64, help_text="The x-request-id of the latest.")

    class Meta:
        ordering = ["-at"]
        indexes = [models.Index(fields=["organization", "hour"])]
        constraints = [
            models.UniqueConstraint(
                fields=["api_key", "hour", "code"], name="one_refusal_per_key_hour_and_code"
            )
        ]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H:00} {self.code}"


class WrongKey(models.Model):
    """The requests of one hour (UTC) from one address, with a secret that is unknown, revoked or
    expired."""

    masked = models.CharField(max_length=16, help_text="The public part of the secret, or ***.")
    address = models.CharField(
        max_length=ADDRESS_LENGTH, help_text="Empty for all beyond the bound."
    )
    code = models.CharField(max_length=64)
    hour = models.DateTimeField(db_index=True, help_text="The beginning of the hour.")
    count = models.PositiveBigIntegerField(default=0)
    at = models.DateTimeField(help_text="When the latest of them was refused.")

    class Meta:
        ordering = ["-at"]
        constraints = [
            models.UniqueConstraint(
                fields=["masked", "address", "code", "hour"], name="one_wrong_key_per_hour"
            )
        ]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H:00} {self.masked}"
