"""The authentication backend of sessions that began by OpenID Connect. Django uses it only while
OpenID Connect is configured, so turning that off ends these sessions."""

from django.contrib.auth.backends import ModelBackend
from django.http import HttpRequest

PATH = "completions.sign_in.backend.ProviderBackend"


class ProviderBackend(ModelBackend):
    def authenticate(self, request: HttpRequest | None, **credentials: object) -> None:  # type: ignore[override]
        """Return None: the provider's users have no password."""
