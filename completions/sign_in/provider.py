"""The OpenID Connect provider as this service's web process knows it.

Authlib builds the requests, and verifies the id token with the keys that the provider publishes at
that moment, so a rotated key works and a withdrawn one fails at once. Authlib and requests are
imported when they are needed: they are optional.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from django.http import HttpRequest

from completions.sign_in.configuration import Configuration, is_protected

logger = logging.getLogger(__name__)

FRESH = 3600.0
"""Seconds after which the discovery document is read again."""
RETRY = 10.0
"""Minimum seconds between discovery attempts after a failure."""
LEEWAY = 30
"""Seconds that the provider's clock may differ from ours."""
STARTED_FOR = 3600.0
"""Seconds in which a sign-in must end."""
STARTED = 8
"""The most unfinished sign-ins of one browser session. The oldest ones make room."""
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
_OPTIONAL = ("userinfo_endpoint", "end_session_endpoint")
_ALGORITHMS = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
)
"""Signatures that only the provider can make: neither `none`, nor HMAC with the client's secret."""


class ProviderError(Exception):
    """The provider cannot be reached, or its documents are invalid."""


class UnverifiedError(Exception):
    """What the browser or the provider sent does not prove who the user is."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the provider says the user is."""

    claims: dict[str, object] = field(repr=False)
    id_token: str = field(repr=False)
    next: str
    """Where the user wanted to go."""


class Provider:
    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self._lock = threading.Lock()
        self._client: Any = None
        self._failure = ""
        self._asked = float("-inf")

    def start(self, request: HttpRequest, redirect_uri: str, next_url: str) -> str:
        """Begin a sign-in. Returns the URL of the provider's page for it. Raises ProviderError."""
        client = self._get_metadata()
        authorization = client.create_authorization_url(redirect_uri)
        _make_room(request)
        facts = {"redirect_uri": redirect_uri, "next": next_url, "since": time.time()}
        client.save_authorize_data(request, **facts, **authorization)
        return str(authorization["url"])

    def finish(self, request: HttpRequest) -> Identity:
        """Verify what the browser brings back. Raises ProviderError or UnverifiedError."""
        client = self._get_metadata()
        state = request.GET.get("state", "")
        started = client.framework.get_state_data(request.session, state)
        client.framework.clear_state_data(request.session, state)  # no state works twice
        if started is None or started["since"] < time.time() - STARTED_FOR:
            message = "this browser has not started it, or started it over an hour ago"
            raise UnverifiedError(message)
        if error := request.GET.get("error"):
            reason = request.GET.get("error_description", "")[:200]
            raise UnverifiedError(f"the provider answered {error[:50]} {reason}".strip())
        if request.GET.get("iss", self.configuration.issuer) != self.configuration.issuer:
            raise UnverifiedError("another issuer sent the answer")
        with _translate_errors():
            token = client.fetch_access_token(
                redirect_uri=started["redirect_uri"],
                code=request.GET.get("code", ""),
                code_verifier=started["code_verifier"],
            )
            if not token.get("id_token"):
                raise UnverifiedError("the provider sent no id token")
            claims = self._verify(client, token, started["nonce"])
            if self.configuration.groups_claim not in claims:
                claims = _complete(client, token, claims)
        return Identity(claims, token["id_token"], started["next"])

    def make_end_session_url(self, id_token: str, then: str) -> str | None:
        """Return where the user ends the provider's session; None if the provider offers no such
        page or cannot be asked. `then` is where it sends the user afterwards."""
        try:
            client = self._get_metadata()
        except ProviderError as error:
            logger.warning("a session ended here, and not at the provider: %s", error)
            return None
        if "end_session_endpoint" not in client.server_metadata:
            return None
        logout_url = client.create_logout_url(
            post_logout_redirect_uri=then,
            id_token_hint=id_token,
            client_id=self.configuration.client_id,
        )
        return str(logout_url["url"])

    def _verify(self, client: Any, token: dict[str, object], nonce: str) -> dict[str, object]:
        """Return the id token's claims. Authlib checks the expiry as well, and `azp` and
        `at_hash`."""
        client.fetch_jwk_set(force=True)
        expected = {
            "iss": {"essential": True, "value": self.configuration.issuer},
            "aud": {"essential": True, "value": self.configuration.client_id},
        }
        claims = client.parse_id_token(token, nonce=nonce, claims_options=expected, leeway=LEEWAY)
        return dict(claims)

    def _get_metadata(self) -> Any:
        """Return Authlib's client of the provider. One thread at a time asks for the discovery
        document; a failure is remembered, so that few requests wait for a provider that is down."""
        with self._lock:
            age = time.monotonic() - self._asked
            if self._failure and age < RETRY:
                raise ProviderError(self._failure)
            if self._failure or age > FRESH:
                self._failure = ""
                try:
                    self._client = self._discover()
                except Exception as error:  # also a wrong REQUESTS_CA_BUNDLE, for example
                    self._failure = str(error) or type(error).__name__
                    logger.error("sign-in by OpenID Connect does not work: %s", self._failure)
                    raise ProviderError(self._failure) from error
                finally:
                    self._asked = time.monotonic()
            return self._client

    def _discover(self) -> object:
        from authlib.integrations.django_client import OAuth

        from completions.sign_in import transport

        configuration = self.configuration
        url = configuration.issuer.rstrip("/") + "/.well-known/openid-configuration"
        try:
            document = transport.read(url)
        except (OSError, ValueError) as error:
            raise ProviderError(f"{url} cannot be read: {error}") from error
        metadata = _check_metadata(document, configuration.issuer, url)
        return OAuth().register(
            "quire",
            client_cls=transport.Client,
            client_auth_methods=[("client_secret_basic", transport.write_basic)],
            client_id=configuration.client_id,
            client_secret=configuration.client_secret,
            client_kwargs={
                "scope": configuration.scopes,
                "code_challenge_method": "S256",
                "default_timeout": transport.SILENT,
                "token_endpoint_auth_method": _choose_secret_method(document),
            },
            **metadata,
        )


@lru_cache(maxsize=1)
def get_provider(configuration: Configuration) -> Provider:
    return Provider(configuration)


def _check_metadata(document: object, issuer: str, url: str) -> dict[str, object]:
    """Return what Authlib needs of a discovery document."""
    if not isinstance(document, dict):
        raise ProviderError(f"{url} is not a JSON object.")
    if document.get("issuer") != issuer:
        message = f"{url} names the issuer {document.get('issuer')!r}, and QUIRE_OIDC_ISSUER is "
        raise ProviderError(message + repr(issuer))
    metadata: dict[str, object] = {"issuer": issuer}
    for name in (*_ENDPOINTS, *_OPTIONAL):
        if name not in document and name in _OPTIONAL:
            continue
        if not isinstance(document.get(name), str) or not is_protected(document[name]):
            raise ProviderError(f"{url} has no {name} that is reached by HTTPS.")
        metadata[name] = document[name]
    offered = document.get("id_token_signing_alg_values_supported")
    algorithms = [each for each in _ALGORITHMS if each in (offered or ())]
    if not algorithms:
        raise ProviderError(f"{url} offers no signature of {', '.join(_ALGORITHMS)}: {offered!r}")
    return metadata | {"id_token_signing_alg_values_supported": algorithms}


def _choose_secret_method(document: Any) -> str:
    """Return the way of sending the client's secret: Basic, the standard's default, or in the
    body."""
    offered = document.get("token_endpoint_auth_methods_supported") or ()
    only_post = "client_secret_post" in offered and "client_secret_basic" not in offered
    return "client_secret_post" if only_post else "client_secret_basic"


def _complete(
    client: Any, token: dict[str, object], claims: dict[str, object]
) -> dict[str, object]:
    """Return the claims, with those that only the provider's userinfo has."""
    if "userinfo_endpoint" not in client.server_metadata:
        return claims
    more = dict(client.userinfo(token=token))
    if more.get("sub") != claims["sub"]:
        raise UnverifiedError("the provider's userinfo is about another user")
    return more | claims


def _make_room(request: HttpRequest) -> None:
    """Forget the oldest sign-ins that this session started and did not finish."""
    states = {
        key: value["exp"]
        for key, value in request.session.items()
        if key.startswith("_state_quire_") and isinstance(value, dict)
    }
    for key in sorted(states, key=lambda key: states[key])[: max(0, len(states) - STARTED + 1)]:
        del request.session[key]


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Turn the libraries' errors into ProviderError and UnverifiedError."""
    from authlib.common.errors import AuthlibBaseError
    from joserfc.errors import JoseError

    try:
        yield
    except (AuthlibBaseError, JoseError) as error:
        raise UnverifiedError(str(error)) from error
    except OSError as error:  # RequestException is one
        raise ProviderError(f"the provider does not answer: {error}") from error
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        # Not its repr: that of a UnicodeEncodeError has the whole text, which may be a secret.
        message = f"the provider's answer is invalid: {type(error).__name__}: {error}"
        raise ProviderError(message) from error
