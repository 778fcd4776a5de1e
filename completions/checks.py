"""System checks for configuration that would otherwise fail at the first request."""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.middleware.clickjacking import XFrameOptionsMiddleware
from django.middleware.csrf import CsrfViewMiddleware
from django.middleware.security import SecurityMiddleware
from django.utils.module_loading import import_string

from completions.catalog import model_files
from completions.catalog.entries import CatalogError

MIN_PEPPER = 32
CLIENT_TIMEOUT = 600
"""Default timeout of the openai client in seconds."""


@register()
def check_pepper(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    if len(settings.KEY_PEPPER) >= MIN_PEPPER:
        return []
    return [
        Error(
            f"QUIRE_KEY_PEPPER has fewer than {MIN_PEPPER} characters.",
            hint="Generate one with: python -c 'import secrets; print(secrets.token_urlsafe(48))'. "
            "API keys created with another pepper stop working.",
            id="quire.E001",
        )
    ]


@register()
def check_models_file(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    try:
        model_files.served_models()
    except CatalogError as error:
        hint = "QUIRE_MODELS is its path; the repository has an example, models.toml."
        return [Error(str(error), hint=hint, id="quire.E002")]
    return []


_PROTECTION = (SecurityMiddleware, XFrameOptionsMiddleware, CsrfViewMiddleware)


@register(deploy=True)
def check_protection(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check for our subclasses of Django's middleware; Django's checks look for exact names."""
    used = tuple(import_string(name) for name in settings.MIDDLEWARE)
    return [
        Error(
            f"MIDDLEWARE has no subclass of {wanted.__name__}.",
            hint="Add the one in project/server/middleware.py.",
            id="quire.E003",
        )
        for wanted in _PROTECTION
        if not any(isinstance(each, type) and issubclass(each, wanted) for each in used)
    ]


@register(deploy=True)
def check_https(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    if settings.HTTPS:
        return []
    return [
        Warning(
            "QUIRE_HTTPS is false, so keys and the admin's cookies are sent unencrypted.",
            hint="Put a proxy that terminates TLS in front, and set QUIRE_HTTPS=true.",
            id="quire.W002",
        )
    ]


@register()
def check_timeouts(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    if settings.REQUEST_TIMEOUT < CLIENT_TIMEOUT:
        return []
    return [
        Warning(
            f"QUIRE_REQUEST_TIMEOUT is {settings.REQUEST_TIMEOUT:g} seconds; the openai client "
            f"times out after {CLIENT_TIMEOUT} and sends the request again.",
            hint=f"Set it below {CLIENT_TIMEOUT}, and run longer requests in the background.",
            id="quire.W001",
        )
    ]
