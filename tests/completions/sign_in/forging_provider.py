"""An OpenID Connect provider on a port of its own that can send anything: the tests' attacker.

It checks what it gets as a strict provider does: the client's secret, the code, the redirect URI
and the verifier of PKCE.
"""

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from secrets import token_urlsafe
from typing import Any, BinaryIO
from urllib.parse import parse_qs, unquote_plus, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey, KeySet

CLIENT, SECRET = "quire", "$a:%41+sécret€"


@dataclass
class Forging:
    """What the next tokens and documents are like."""

    url: str = ""
    key: ECKey = field(default_factory=lambda: ECKey.generate_key("P-256"))
    published: list[ECKey] = field(default_factory=list)
    subject: str = "ada"
    groups: Any = field(default_factory=lambda: ["readers"])
    change: Callable[[dict[str, Any]], object] = lambda claims: None
    """Changes the claims of an id token before it is signed."""
    sign: Callable[[dict[str, Any]], str] | None = None
    """Signs the claims instead of the published key."""
    answer: Callable[[dict[str, Any]], object] = lambda token: None
    """Changes the answer of the token endpoint."""
    document: dict[str, Any] = field(default_factory=dict)
    userinfo: dict[str, Any] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    slow: dict[str, int] = field(default_factory=dict)
    """By path: the byte of the response from which on each comes late, for a minute."""
    redirects: dict[str, str] = field(default_factory=dict)
    """By path: where it sends the client with all that it sent."""

    def discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "userinfo_endpoint": f"{self.url}/userinfo",
            "end_session_endpoint": f"{self.url}/end",
            "id_token_signing_alg_values_supported": ["ES256", "HS256", "none"],
        } | self.document

    def keys(self) -> dict[str, Any]:
        return dict(KeySet(self.published or [self.key]).as_dict(private=False))

    def authorize(self, query: dict[str, str]) -> str:
        """The address that the user is sent back to."""
        assert query["response_type"] == "code"
        assert query["client_id"] == CLIENT
        assert query["code_challenge_method"] == "S256"
        code = token_urlsafe()
        self.codes[code] = query
        return query["redirect_uri"] + "?" + urlencode({"code": code, "state": query["state"]})

    def token(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        started = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if started is None or started["code_challenge"] != encoded(digest):
            return 400, {"error": "invalid_grant"}
        assert form["redirect_uri"] == started["redirect_uri"]
        now = int(time.time())
        claims = {
            "iss": self.url,
            "aud": CLIENT,
            "sub": self.subject,
            "iat": now,
            "exp": now + 300,
            "nonce": started["nonce"],
            "groups": self.groups,
            "email": f"{self.subject}@example.org",
            "given_name": self.subject.title(),
        }
        self.change(claims)
        id_token = (self.sign or self.signed)(claims)
        answer = {"access_token": "opaque", "token_type": "Bearer", "id_token": id_token}
        self.answer(answer)
        return 200, answer

    def response(self, path: str, status: int, body: bytes) -> tuple[bytes, bytes]:
        """The whole response: what is sent at once, and what comes late."""
        elsewhere = self.redirects.get(path)
        head = [
            f"HTTP/1.0 {307 if elsewhere else status} x",
            f"Content-Length: {len(body)}",
            *([f"Location: {elsewhere}"] if elsewhere else []),
            "",
            "",
        ]
        whole = "\r\n".join(head).encode() + body
        at_once = self.slow.get(path, len(whole))
        return whole[:at_once], whole[at_once:]

    def signed(self, claims: dict[str, Any], key: ECKey | None = None) -> str:
        key = key or self.key
        return jwt.encode({"alg": "ES256", "kid": key.thumbprint()}, claims, key)


def dribble(text: bytes, out: BinaryIO, stopping: threading.Event) -> None:
    """Write byte by byte, for a minute in all."""
    until = time.monotonic() + 60
    for left in range(len(text), 0, -1):
        if stopping.wait(max(0, until - time.monotonic()) / left):
            return
        out.write(text[-left:][:1])


def encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def unsigned(claims: dict[str, Any]) -> str:
    """A token with the algorithm `none`."""
    parts = (encoded(json.dumps(part).encode()) for part in ({"alg": "none"}, claims))
    return ".".join([*parts, ""])


def signed_with_the_public_key(forging: Forging) -> Callable[[dict[str, Any]], str]:
    """Signs by HMAC, with what everyone knows as the secret."""

    def sign(claims: dict[str, Any]) -> str:
        header = {"alg": "HS256", "kid": forging.key.thumbprint()}
        text = ".".join(encoded(json.dumps(part).encode()) for part in (header, claims))
        secret = forging.key.as_pem(private=False)
        return f"{text}.{encoded(hmac.digest(secret, text.encode(), 'sha256'))}"

    return sign


@contextmanager
def running() -> Iterator[Forging]:
    forging = Forging()
    forging.key.ensure_kid()
    stopping = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            forging.seen.append(parts.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            match parts.path:
                case "/.well-known/openid-configuration":
                    self._send(200, forging.discovery())
                case "/keys":
                    self._send(200, forging.keys())
                case "/userinfo":
                    self._send(200, forging.userinfo)
                case "/authorize":
                    self.send_response(302)
                    self.send_header("Location", forging.authorize(query))
                    self.end_headers()
                case _:
                    self._send(404, {})

        def do_POST(self) -> None:
            forging.seen.append(self.path)
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(text).items()}
            name_and_secret = base64.b64decode(self.headers["Authorization"].split()[1]).decode()
            if [unquote_plus(part) for part in name_and_secret.split(":", 1)] != [CLIENT, SECRET]:
                return self._send(401, {"error": "invalid_client"})
            self._send(*forging.token(form))
            return None

        def _send(self, status: int, body: Any) -> None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            at_once, late = forging.response(urlsplit(self.path).path, status, data)
            self.wfile.write(at_once)
            with suppress(OSError):  # the client hung up
                dribble(late, self.wfile, stopping)

        def log_message(self, *_args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    forging.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield forging
    finally:
        stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()
