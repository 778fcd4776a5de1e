"""System checks for configuration that would otherwise fail at the first request."""

from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_network

from django.conf import settings
from django.contrib.auth.models import Group
from django.core.checks import CheckMessage, Error, Warning, register
from django.db import DatabaseError

from completions.accounts.operator_groups import OPERATOR, VIEWER
from completions.catalog import model_files
from completions.catalog.entries import CatalogError
from completions.models import Organization
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
    return [*messages, *_check_proxies(settings.TRUSTED_PROXIES)]


def _check_proxies(proxies: list[str]) -> Iterator[CheckMessage]:
    """Yield an error for each entry that uvicorn would compare as a name: it matches no address,
    nor does `*` beside others."""
    for proxy in proxies:
        try:
            if proxies != ["*"]:
                ip_network(proxy)
        except ValueError as error:
            message = f"QUIRE_TRUSTED_PROXIES has no address or network in {proxy!r}: {error}."
            hint = "List addresses and networks, such as 127.0.0.1,10.0.0.0/8, or * alone for any."
            yield Error(message, hint=hint, id="quire.E005")


def _check_roles(provider: configuration.Configuration | None) -> list[CheckMessage]:
    roles = {role for _, role in provider.roles} if provider else set()
    parsed = {role: configuration.parse_membership(role) for role in roles}
    organizations = {each[1] for each in parsed.values() if each}
    missing = {role for role, each in parsed.items() if each is None}
    missing -= {configuration.SUPERUSER, VIEWER, OPERATOR}
    if not missing and not organizations:
        return []
    with suppress(DatabaseError):  # no tables yet: nobody has made a group of their own
        missing -= set(Group.objects.filter(name__in=missing).values_list("name", flat=True))
        there = Organization.objects.filter(name__in=organizations)
        organizations -= set(there.values_list("name", flat=True))
    hint = f"Use {configuration.SUPERUSER}, {OPERATOR}, {VIEWER}, or make the group in the admin."
    messages: list[CheckMessage] = [
        Warning(f"QUIRE_OIDC_ROLES names no role: {role!r}.", hint=hint, id="quire.W003")
        for role in sorted(missing)
    ]
    advice = "Make the organization, or name one that exists: GROUP=member:ORGANIZATION."
    messages += [
        Warning(f"QUIRE_OIDC_ROLES names no organization: {name!r}.", hint=advice, id="quire.W003")
        for name in sorted(organizations)
    ]
    return messages


@register(deploy=True)
def check_deployment(**_: object) -> list[CheckMessage]:
    if settings.HTTPS:
        return list(_check_forwarding())
    message = "QUIRE_HTTPS is false, so keys and the admin's cookies are sent unencrypted."
    hint = "Put a proxy that terminates TLS in front, and set QUIRE_HTTPS=true."
    return [Warning(message, hint=hint, id="quire.W002")]


def _check_forwarding() -> Iterator[CheckMessage]:
    if not settings.TRUSTED_PROXIES:
        message = (
            "QUIRE_HTTPS is true and QUIRE_TRUSTED_PROXIES is empty: networks of keys, the audit "
            "trail and wrong keys would see the proxy's address instead of the client's."
        )
        hint = "List the addresses of the proxy that terminates TLS."
        yield Warning(message, hint=hint, id="quire.W004")
