"""Tokens, states and addresses that prove nothing: each is refused, logged, and recorded."""

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import User

from completions.models import AuditEntry
from completions.outgoing import Requests
from completions.sign_in import people, provider

pytest.importorskip("authlib", reason="requirements-oidc.txt is not installed")
from joserfc.jwk import ECKey

from completions.sign_in import transport
from tests.completions.sign_in.conftest import Visitor
from tests.completions.sign_in.forging_provider import (
    CLIENT,
    Forging,
    signed_with_the_public_key,
    unsigned,
)

Change = Callable[[dict[str, Any]], object]


def refused(visitor: Visitor, path: str, reason: str) -> None:
    answer = visitor.client.get(path)
    assert answer.status_code == 400
    assert "could not be verified" in answer.content.decode()
    assert not visitor.is_in
    assert not User.objects.exists()
    entry = AuditEntry.objects.latest("id")
    assert (entry.action, entry.user) == ("refused", None)
    assert reason in entry.changes["reason"][1]


CLAIMS: dict[str, tuple[Change, str]] = {
    "another nonce": (lambda claims: claims.update(nonce="other"), "nonce"),
    "no nonce": (lambda claims: claims.pop("nonce"), "nonce"),
    "another audience": (lambda claims: claims.update(aud="other"), "aud"),
    "another audience, for us": (lambda claims: claims.update(aud="other", azp=CLIENT), "aud"),
    "for another of two audiences": (
        lambda claims: claims.update(aud=[CLIENT, "other"], azp="other"),
        "azp",
    ),
    "no audience": (lambda claims: claims.pop("aud"), "aud"),
    "another issuer": (lambda claims: claims.update(iss="https://other.example"), "iss"),
    "no issuer": (lambda claims: claims.pop("iss"), "iss"),
    "expired": (lambda claims: claims.update(exp=int(time.time()) - 60), "expired"),
    "never expires": (lambda claims: claims.pop("exp"), "exp"),
    "not yet valid": (lambda claims: claims.update(nbf=int(time.time()) + 600), "not yet valid"),
    "about nobody": (lambda claims: claims.pop("sub"), "sub"),
}


@pytest.mark.represented_by("another nonce", "another audience", "expired")
@pytest.mark.parametrize("name", CLAIMS)
def test_claims_that_are_not_for_this_sign_in(visitor: Visitor, forging: Forging, name: str):
    change, reason = CLAIMS[name]
    forging.change = change
    refused(visitor, visitor.sent_back(), reason)


def test_a_token_without_a_signature(visitor: Visitor, forging: Forging):
    forging.sign = unsigned
    refused(visitor, visitor.sent_back(), "none")


def test_a_token_signed_with_the_public_key_as_a_secret(visitor: Visitor, forging: Forging):
    forging.sign = signed_with_the_public_key(forging)
    refused(visitor, visitor.sent_back(), "HS256")


@pytest.mark.parametrize("named", [True, False])
def test_a_token_signed_with_another_key(visitor: Visitor, forging: Forging, named: bool):
    own = ECKey.generate_key("P-256")
    forging.published = [forging.key]
    forging.sign = lambda claims: forging.signed(claims, own)
    if not named:  # under the name of the published key
        own.thumbprint = forging.key.thumbprint  # type: ignore[method-assign]
    refused(visitor, visitor.sent_back(), "" if named else "bad_signature")


def test_no_token_at_all(visitor: Visitor, forging: Forging):
    forging.answer = lambda token: token.pop("id_token")
    refused(visitor, visitor.sent_back(), "no id token")


def test_a_rotated_key_works_and_the_old_one_does_not(visitor: Visitor, forging: Forging):
    assert visitor.sign_in().status_code == 302
    old, forging.key = forging.key, ECKey.generate_key("P-256")
    forging.key.ensure_kid()
    assert visitor.sign_in().status_code == 302
    forging.sign = lambda claims: forging.signed(claims, old)
    assert visitor.sign_in().status_code == 400


def test_a_state_works_once(visitor: Visitor):
    path = visitor.sent_back()
    assert visitor.client.get(path).status_code == 302
    visitor.client.logout()
    User.objects.all().delete()
    refused(visitor, path, "has not started it")


def test_a_refused_state_is_used_up(visitor: Visitor, forging: Forging):
    forging.change = lambda claims: claims.update(nonce="other")
    path = visitor.sent_back()
    refused(visitor, path, "nonce")
    refused(visitor, path, "has not started it")


def test_a_state_of_another_browser(visitor: Visitor):
    path = visitor.sent_back()
    refused(Visitor(), path, "has not started it")


def test_an_answer_that_nobody_asked_for(visitor: Visitor):
    refused(visitor, "/admin/oidc/callback/?code=x&state=y", "has not started it")
    refused(visitor, "/admin/oidc/callback/", "has not started it")


def test_a_stolen_code_needs_the_verifier(visitor: Visitor, forging: Forging):
    """The code of one browser, brought to another one's sign-in."""
    stolen = parse_qs(urlsplit(visitor.sent_back()).query)["code"][0]
    thief = Visitor()
    state = parse_qs(urlsplit(thief.sent_back()).query)["state"][0]
    refused(thief, f"/admin/oidc/callback/?code={stolen}&state={state}", "invalid_grant")


def test_an_answer_of_another_issuer(visitor: Visitor):
    refused(visitor, visitor.sent_back() + "&iss=https%3A%2F%2Fother.example", "another issuer")


def test_the_provider_refuses(visitor: Visitor):
    state = parse_qs(urlsplit(visitor.start()["Location"]).query)["state"][0]
    denied = f"/admin/oidc/callback/?error=access_denied&error_description=%3Cb%3E&state={state}"
    refused(visitor, denied, "access_denied <b>")
    refused(visitor, denied, "has not started it")


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "http:evil.example",
        "javascript:alert(1)",
        "\thttps://evil.example",
        "///evil.example",
        "https:///evil.example",
        "/admin/\r\nSet-Cookie: a=b",
    ],
)
def test_no_redirect_leads_elsewhere(visitor: Visitor, target: str):
    answer = visitor.sign_in(target)
    assert answer.status_code == 302
    assert urlsplit(answer["Location"]).netloc == ""
    assert answer["Location"].startswith("/admin/")
    assert "evil" not in answer["Location"]


def test_the_session_id_changes_at_sign_in(visitor: Visitor):
    path = visitor.sent_back()
    before = visitor.client.session.session_key
    visitor.client.get(path)
    assert visitor.client.session.session_key != before


def test_strangers_cannot_fill_the_audit_trail(visitor: Visitor, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(people, "STRANGERS_PER_HOUR", 3)
    for _ in range(6):
        assert visitor.client.get("/admin/oidc/callback/?code=x&state=y").status_code == 400
    assert AuditEntry.objects.count() == 3


@pytest.mark.parametrize("junk", [b"[]", b"<html>", b'{"id_token": 7}', b'{"id_token": "a.b"}'])
def test_junk_of_the_token_endpoint(
    visitor: Visitor, forging: Forging, monkeypatch: pytest.MonkeyPatch, junk: bytes
):
    monkeypatch.setattr(forging, "token", lambda form: (200, junk))
    answer = visitor.sign_in()
    assert answer.status_code in (400, 503)
    assert not visitor.is_in


@pytest.mark.parametrize("status", [401, 500, 302])
def test_failures_of_the_token_endpoint(
    visitor: Visitor, forging: Forging, monkeypatch: pytest.MonkeyPatch, status: int
):
    monkeypatch.setattr(forging, "token", lambda form: (status, {"error": "x"}))
    assert visitor.sign_in().status_code in (400, 503)


@pytest.mark.parametrize("at_once", [5, 45])  # within the first line, and within the body
@pytest.mark.parametrize("path", ["/.well-known/openid-configuration", "/token", "/keys"])
def test_a_provider_that_dribbles_is_cut_off(
    visitor: Visitor, forging: Forging, monkeypatch: pytest.MonkeyPatch, path: str, at_once: int
):
    """It is never silent for long, and its answer would be right after a minute."""
    forging.slow[path] = at_once
    if path.startswith("/."):
        monkeypatch.setattr(transport, "SECONDS", 0.5)
        assert visitor.start().status_code == 503
    else:
        started = visitor.sent_back()
        monkeypatch.setattr(transport, "SECONDS", 0.5)
        assert visitor.client.get(started).status_code == 503
        (entry,) = AuditEntry.objects.all()
        assert "did not answer within 0.5 s" in entry.changes["reason"][1]


def test_a_lookup_that_hangs_is_not_waited_for(
    visitor: Visitor, forging: Forging, monkeypatch: pytest.MonkeyPatch
):
    released, returned, look_up = threading.Event(), threading.Event(), socket.getaddrinfo

    def hang(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if port == urlsplit(forging.url).port:
            released.wait(20)
            returned.set()
        return look_up(host, port, *args, **options)

    monkeypatch.setattr(transport, "SECONDS", 0.5)
    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(transport, "_REQUESTS", Requests(1))
    assert visitor.start().status_code == 503
    assert not returned.is_set()
    with pytest.raises(TimeoutError, match="too many requests"):  # threads are bounded
        transport.read("http://id.example")
    released.set()


def test_an_endless_answer_is_not_read(
    visitor: Visitor, forging: Forging, monkeypatch: pytest.MonkeyPatch
):
    large = b" " * transport.MAX_BYTES + b"{}"
    monkeypatch.setattr(forging, "token", lambda form: (200, large))
    assert visitor.sign_in().status_code == 503
    assert "more than" in AuditEntry.objects.get().changes["reason"][1]


@pytest.mark.parametrize("path", ["/.well-known/openid-configuration", "/token", "/keys"])
def test_the_provider_s_redirects_are_not_followed(visitor: Visitor, forging: Forging, path: str):
    """They could lead the client's secret and the code elsewhere."""
    forging.redirects[path] = "/elsewhere"
    if path.startswith("/."):
        assert visitor.start().status_code == 503
    else:
        assert visitor.sign_in().status_code == 503
    assert "/elsewhere" not in forging.seen


def test_a_sign_in_ends_within_an_hour(visitor: Visitor, monkeypatch: pytest.MonkeyPatch):
    path = visitor.sent_back()
    monkeypatch.setattr(provider, "STARTED_FOR", -1.0)
    refused(visitor, path, "over an hour ago")


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"])
def test_texts_that_no_database_takes(
    visitor: Visitor, forging: Forging, caplog: pytest.LogCaptureFixture, text: str
):
    # pytest-xdist cannot send a captured log that holds half a surrogate pair.
    caplog.set_level(logging.CRITICAL, "completions.sign_in")
    forging.change = lambda claims: [claims.pop(name) for name in ("groups", "email", "given_name")]
    forging.userinfo = {"sub": "ada", "groups": ["readers"], "email": text, "given_name": text}
    assert visitor.sign_in().status_code == 302
    forging.token = lambda form: (400, {"error": text})  # type: ignore[method-assign]
    assert visitor.sign_in().status_code == 400
    user = User.objects.get()
    entries = AuditEntry.objects.order_by("id")
    stored = [user.email, user.first_name, entries[0].changes["email"][1]]
    for each in (*stored, entries[1].changes["reason"][1]):
        assert each.startswith("a")
        assert each.encode().count(b"\0") == 0


def test_junk_instead_of_keys(visitor: Visitor, forging: Forging, monkeypatch: pytest.MonkeyPatch):
    for junk in ([], {"keys": 7}, {"keys": [{"kty": "EC"}]}, {"keys": []}):
        monkeypatch.setattr(forging, "keys", lambda junk=junk: junk)
        assert visitor.sign_in().status_code in (400, 503)
    assert not visitor.is_in
