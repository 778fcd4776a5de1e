"""System checks: configuration that would only fail once a request arrives."""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from completions import model_files
from completions.catalog import CatalogError

MIN_PEPPER = 32
CLIENT_TIMEOUT = 600
"""Seconds after which the openai client stops reading by default."""


@register()
def check_pepper(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    if len(settings.KEY_PEPPER) >= MIN_PEPPER:
        return []
    return [
        Error(
            f"QUIRE_KEY_PEPPER has fewer than {MIN_PEPPER} characters.",
            hint="Draw one with: python -c 'import secrets; print(secrets.token_urlsafe(48))'. "
            "Every API key made under another pepper stops working.",
            id="quire.E001",
        )
    ]


@register()
def check_models_file(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    try:
        model_files.served_models()
    except CatalogError as error:
        hint = "QUIRE_MODELS names the file; models.toml in the repository is an example."
        return [Error(str(error), hint=hint, id="quire.E002")]
    return []


@register()
def check_timeouts(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    if settings.REQUEST_TIMEOUT < CLIENT_TIMEOUT:
        return []
    return [
        Warning(
            f"QUIRE_REQUEST_TIMEOUT is {settings.REQUEST_TIMEOUT:g} seconds; the openai client "
            f"gives up after {CLIENT_TIMEOUT} and then sends the request again.",
            hint="Set it below, and let longer requests run in the background.",
            id="quire.W001",
        )
    ]
