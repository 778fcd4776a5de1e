"""A forging provider, settings that name it, and a browser that signs in with it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import pytest
from django.http import HttpResponse
from django.test import Client
from pytest_django.fixtures import Settings

from completions.accounts import operator_groups
from completions.sign_in import backend, provider

if TYPE_CHECKING:  # joserfc may be missing; then the tests are skipped
    from tests.completions.sign_in.forging_provider import Forging

OFF = dict.fromkeys(
    (
        "ISSUER",
        "CLIENT_ID",
        "CLIENT_SECRET",
        "CLIENT_SECRET_FILE",
        "NAME",
        "SCOPES",
        "GROUPS_CLAIM",
        "ROLES",
    ),
    "",
)
ROLES = "readers=Viewer,operators=Operator,owners=superuser"


@pytest.fixture
def forging(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> "Iterator[Forging]":
    from completions.sign_in import transport
    from tests.completions.sign_in import forging_provider
    from tests.completions.sign_in.forging_provider import CLIENT, SECRET

    monkeypatch.setattr(transport, "SILENT", 120.0)  # a loaded machine may be slow
    monkeypatch.setattr(transport, "SECONDS", 120.0)
    with forging_provider.running() as forging:
        settings.OIDC = OFF | {
            "ISSUER": forging.url,
            "CLIENT_ID": CLIENT,
            "CLIENT_SECRET": SECRET,
            "ROLES": ROLES,
        }
        settings.AUTHENTICATION_BACKENDS = [*settings.AUTHENTICATION_BACKENDS, backend.PATH]
        provider.get_provider.cache_clear()
        yield forging
    provider.get_provider.cache_clear()


class Visitor:
    """A browser: it keeps cookies, and follows the provider's redirect."""

    def __init__(self) -> None:
        self.client = Client()

    def start(self, next_url: str = "") -> HttpResponse:
        answer: HttpResponse = self.client.post("/admin/oidc/start/", {"next": next_url})
        return answer

    def sent_back(self, next_url: str = "") -> str:
        """The path, with its query, to which the provider sends the browser back."""
        started = self.start(next_url)
        assert started.status_code == 302
        parts = urlsplit(httpx.get(started["Location"], timeout=120).headers["Location"])
        assert parts.path == "/admin/oidc/callback/"
        return f"{parts.path}?{parts.query}"

    def sign_in(self, next_url: str = "") -> HttpResponse:
        answer: HttpResponse = self.client.get(self.sent_back(next_url))
        return answer

    @property
    def is_in(self) -> bool:
        """Any page of the admin answers; this one costs little."""
        return self.client.get("/admin/jsi18n/").status_code == 200


@pytest.fixture
def visitor(forging: "Forging", served: None, db: None) -> Visitor:
    operator_groups.ensure()
    return Visitor()
