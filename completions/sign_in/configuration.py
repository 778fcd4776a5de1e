"""Parses the QUIRE_OIDC_... settings. A missing or wrong one raises ConfigurationError."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from django.conf import settings

from completions.models import MemberRole

SUPERUSER = "superuser"
"""The word in QUIRE_OIDC_ROLES for a user who may do everything."""
_MEMBERSHIPS = {f"{role}:": role for role in MemberRole.values}
"""What is before the name of an organization in QUIRE_OIDC_ROLES: `member:NAME`, `admin:NAME`."""
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

    def list_roles(self, groups: Iterable[str]) -> frozenset[str]:
        held = frozenset(groups)
        named = frozenset(role for group, role in self.roles if group in held)
        return frozenset(role for role in named if parse_membership(role) is None)

    def list_memberships(self, groups: Iterable[str]) -> dict[str, str]:
        """Return the user's role by the name of the organization, `admin` before `member`."""
        held = frozenset(groups)
        found: dict[str, str] = {}
        for group, named in self.roles:
            parsed = parse_membership(named)
            if parsed is not None and group in held:
                role, organization = parsed
                if found.get(organization) != MemberRole.ADMIN:
                    found[organization] = role
        return found


def parse_membership(role: str) -> tuple[str, str] | None:
    """Return (role, name of the organization) of `member:NAME` or `admin:NAME`."""
    for prefix, name in _MEMBERSHIPS.items():
        if role.startswith(prefix):
            return name, role.removeprefix(prefix).strip()
    return None


def load_configuration() -> Configuration | None:
    """Return the configuration; None if no QUIRE_OIDC_... variable is set. Raises
    ConfigurationError."""
    settings_oidc: Mapping[str, str] = settings.OIDC
    if not any(settings_oidc.values()):
        return None
    for library in _LIBRARIES:
        if find_spec(library) is None:
            message = f"QUIRE_OIDC_... variables are set, but the package {library} is missing."
            raise ConfigurationError(message, "pip install -r requirements-oidc.txt")
    issuer = _parse_issuer(settings_oidc["ISSUER"])
    return Configuration(
        issuer=issuer,
        client_id=_require(settings_oidc, "CLIENT_ID", "the id that the provider gave this client"),
        client_secret=_read_secret(settings_oidc),
        name=settings_oidc["NAME"] or urlsplit(issuer).hostname or issuer,
        scopes=_parse_scopes(settings_oidc["SCOPES"]),
        groups_claim=settings_oidc["GROUPS_CLAIM"] or "groups",
        roles=_parse_roles(
            _require(settings_oidc, "ROLES", "GROUP=ROLE pairs, such as admins=superuser")
        ),
    )


def is_protected(url: str) -> bool:
    """Return whether secrets may be sent to this URL: over HTTPS, or to this machine."""
    try:
        parts = urlsplit(url)
        return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    except ValueError:
        return False


def _parse_issuer(url: str) -> str:
    hint = "Set the issuer as the provider's discovery document spells it: https://id.example.com"
    if not url:
        raise ConfigurationError("QUIRE_OIDC_ISSUER is not set.", hint)
    if not is_protected(url):
        message = f"QUIRE_OIDC_ISSUER is {url!r}, which is neither HTTPS nor on this machine."
        raise ConfigurationError(message, hint)
    parts = urlsplit(url)
    if not parts.hostname or parts.query or parts.fragment:
        message = f"QUIRE_OIDC_ISSUER is {url!r}: it needs a host, and no query and no fragment."
        raise ConfigurationError(message, hint)
    return url


def _require(values: Mapping[str, str], name: str, what: str) -> str:
    if not values[name]:
        raise ConfigurationError(f"QUIRE_OIDC_{name} is not set.", f"Set it to {what}.")
    return values[name]


def _read_secret(values: Mapping[str, str]) -> str:
    secret, file = values["CLIENT_SECRET"], values["CLIENT_SECRET_FILE"]
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


def _parse_scopes(text: str) -> str:
    scopes = text.replace(",", " ").split() or ["openid", "profile", "email"]
    if "openid" not in scopes:
        message = f"QUIRE_OIDC_SCOPES is {text!r}, without openid."
        raise ConfigurationError(message, "Add openid: without it the provider sends no id token.")
    return " ".join(scopes)


def _parse_roles(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        group, _, role = (each.strip() for each in part.rpartition("="))
        if not group or not role:
            message = f"QUIRE_OIDC_ROLES has {part!r}, which is not GROUP=ROLE."
            hint = "Write, for example: quire-admins=superuser,quire-staff=Operator,all=Viewer"
            raise ConfigurationError(message, hint)
        pairs.append((group, role))
    return tuple(pairs)
