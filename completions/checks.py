"""System checks for configuration that would otherwise fail at the first request."""

from contextlib import suppress

from django.conf import settings
from django.contrib.auth.models import Group
from django.core.checks import CheckMessage, Error, Warning, register
from django.db import DatabaseError

from completions.accounts.operator_groups import OPERATOR, VIEWER
from completions.catalog import model_files
from completions.catalog.entries import CatalogError
from completions.sign_in import configuration

MIN_PEPPER = 32
CLIENT_TIMEOUT = 600
"""Default timeout of the openai client in seconds."""


@register()
def check_settings(**_: object) -> list[CheckMessage]:
    messages: list[CheckMessage] = []
    if len(settings.KEY_PEPPER) < MIN_PEPPER:
        message = f"QUIRE_KEY_PEPPER has fewer than {MIN_PEPPER} characters."
        hint = (
            "Generate one with: python -c 'import secrets; print(secrets.token_urlsafe(48))'. "
            "API keys created with another pepper stop working."
        )
        messages.append(Error(message, hint=hint, id="quire.E001"))
    try:
        model_files.load_catalog()
    except CatalogError as error:
        hint = "QUIRE_MODELS is its path; the repository has an example, models.toml."
        messages.append(Error(str(error), hint=hint, id="quire.E002"))
    if settings.REQUEST_TIMEOUT >= CLIENT_TIMEOUT:
        message = (
            f"QUIRE_REQUEST_TIMEOUT is {settings.REQUEST_TIMEOUT:g} seconds; the openai client "
            f"times out after {CLIENT_TIMEOUT} and sends the request again."
        )
        hint = f"Set it below {CLIENT_TIMEOUT}, and run longer requests in the background."
        messages.append(Warning(message, hint=hint, id="quire.W001"))
    try:
        provider = configuration.load_configuration()
    except configuration.ConfigurationError as error:
        messages.append(Error(str(error), hint=error.hint, id="quire.E004"))
    else:
        messages += _check_roles(provider)
    return messages


def _check_roles(provider: configuration.Configuration | None) -> list[CheckMessage]:
    roles = {role for _, role in provider.roles} if provider else set()
    missing = roles - {configuration.SUPERUSER, VIEWER, OPERATOR}
    if not missing:
        return []
    with suppress(DatabaseError):  # no tables yet: nobody has made a group of their own
        missing -= set(Group.objects.filter(name__in=missing).values_list("name", flat=True))
    hint = f"Use {configuration.SUPERUSER}, {OPERATOR}, {VIEWER}, or make the group in the admin."
    return [
        Warning(f"QUIRE_OIDC_ROLES names no role: {role!r}.", hint=hint, id="quire.W003")
        for role in sorted(missing)
    ]


@register(deploy=True)
def check_deployment(**_: object) -> list[CheckMessage]:
    if settings.HTTPS:
        return []
    message = "QUIRE_HTTPS is false, so keys and the admin's cookies are sent unencrypted."
    hint = "Put a proxy that terminates TLS in front, and set QUIRE_HTTPS=true."
    return [Warning(message, hint=hint, id="quire.W002")]
