"""Parses the QUIRE_OIDC_... settings. A missing or wrong one raises ConfigurationError."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from django.conf import settings

SUPERUSER = "superuser"
"""The word in QUIRE_OIDC_ROLES for a user who may do everything."""
_LIBRARIES = ("authlib", "requests")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class ConfigurationError(Exception):
    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Configuration:
    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    name: str
    """The provider's name on the button of the login page."""
    scopes: str
    groups_claim: str
    roles: tuple[tuple[str, str], ...]
    """Pairs of a group of the provider and a role here."""

    def roles_of(self, groups: Iterable[str]) -> frozenset[str]:
        held = frozenset(groups)
        return frozenset(role for group, role in self.roles if group in held)


def current() -> Configuration | None:
    """The configuration; None if no QUIRE_OIDC_... variable is set. Raises ConfigurationError."""
    given: Mapping[str, str] = settings.OIDC
    if not any(given.values()):
        return None
    for library in _LIBRARIES:
        if find_spec(library) is None:
            message = f"QUIRE_OIDC_... variables are set, but the package {library} is missing."
            raise ConfigurationError(message, "pip install -r requirements-oidc.txt")
    issuer = _issuer(given["ISSUER"])
    return Configuration(
        issuer=issuer,
        client_id=_needed(given, "CLIENT_ID", "the id that the provider gave this client"),
        client_secret=_secret(given),
        name=given["NAME"] or urlsplit(issuer).hostname or issuer,
        scopes=_scopes(given["SCOPES"]),
        groups_claim=given["GROUPS_CLAIM"] or "groups",
        roles=_roles(_needed(given, "ROLES", "GROUP=ROLE pairs, such as admins=superuser")),
    )


def protected(url: str) -> bool:
    """Whether secrets may be sent to this URL: over HTTPS, or to this machine."""
    try:
        parts = urlsplit(url)
        return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    except ValueError:
        return False


def _issuer(url: str) -> str:
    hint = "Set the issuer as the provider's discovery document spells it: https://id.example.com"
    if not url:
        raise ConfigurationError("QUIRE_OIDC_ISSUER is not set.", hint)
    if not protected(url):
        message = f"QUIRE_OIDC_ISSUER is {url!r}, which is neither HTTPS nor on this machine."
        raise ConfigurationError(message, hint)
    parts = urlsplit(url)
    if not parts.hostname or parts.query or parts.fragment:
        message = f"QUIRE_OIDC_ISSUER is {url!r}: it needs a host, and no query and no fragment."
        raise ConfigurationError(message, hint)
    return url


def _needed(given: Mapping[str, str], name: str, what: str) -> str:
    if not given[name]:
        raise ConfigurationError(f"QUIRE_OIDC_{name} is not set.", f"Set it to {what}.")
    return given[name]


def _secret(given: Mapping[str, str]) -> str:
    secret, file = given["CLIENT_SECRET"], given["CLIENT_SECRET_FILE"]
    hint = "Set QUIRE_OIDC_CLIENT_SECRET, or QUIRE_OIDC_CLIENT_SECRET_FILE to the path of a file."
    if secret and file:
        message = "QUIRE_OIDC_CLIENT_SECRET and QUIRE_OIDC_CLIENT_SECRET_FILE are both set."
        raise ConfigurationError(message, "Set one of them.")
    if file:
        try:
            secret = Path(file).read_text("utf-8").strip()
        except (OSError, ValueError) as error:
            message = f"QUIRE_OIDC_CLIENT_SECRET_FILE cannot be read: {error}"
            raise ConfigurationError(message, hint) from error
    if not secret:
        raise ConfigurationError("The client secret for OpenID Connect is empty.", hint)
    return secret


def _scopes(text: str) -> str:
    scopes = text.replace(",", " ").split() or ["openid", "profile", "email"]
    if "openid" not in scopes:
        message = f"QUIRE_OIDC_SCOPES is {text!r}, without openid."
        raise ConfigurationError(message, "Add openid: without it the provider sends no id token.")
    return " ".join(scopes)


def _roles(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        group, _, role = (each.strip() for each in part.rpartition("="))
        if not group or not role:
            message = f"QUIRE_OIDC_ROLES has {part!r}, which is not GROUP=ROLE."
            hint = "Write, for example: quire-admins=superuser,quire-staff=Operator,all=Viewer"
            raise ConfigurationError(message, hint)
        pairs.append((group, role))
    return tuple(pairs)
