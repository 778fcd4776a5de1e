"""HTTP to the provider, bounded in time and size, through `requests`. That library is optional, so
this module is imported where it is needed."""

from base64 import b64encode
from contextvars import ContextVar
from io import BytesIO
from socket import socket
from typing import Any
from urllib.parse import quote

import requests
import urllib3
from authlib.integrations.django_client import DjangoOAuth2App
from authlib.integrations.requests_client import OAuth2Session
from django.db import close_old_connections
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from completions.outgoing import Requests, Sockets

SILENT = 5.0
"""Seconds that the provider may be silent in any request to it."""
SECONDS = 10.0
"""Seconds that a request may take from the lookup of the host to the end of its response."""
MAX_BYTES = 2 * 1024 * 1024
"""The largest response."""
_REQUESTS = Requests(32)
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) not in "%+")
"""Characters that a provider reads alike, whether it decodes the client's secret or not."""
_sockets: ContextVar[Sockets] = ContextVar("_sockets")


class _Ending:
    """A connection that ends when the time of its request is over."""

    def _new_conn(self) -> socket:
        connection: socket = super()._new_conn()  # type: ignore[misc]
        _sockets.get().add(connection)
        return connection


class _Connection(_Ending, HTTPConnection): ...


class _SecureConnection(_Ending, HTTPSConnection): ...


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


class _Bounded(HTTPAdapter):
    """Reader of each response as a whole, within SECONDS and MAX_BYTES. Follows no redirects, which
    could lead the client's secret elsewhere."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        _use_pools(self.poolmanager)

    def proxy_manager_for(self, *args: Any, **options: Any) -> object:
        return _use_pools(super().proxy_manager_for(*args, **options))

    def send(self, request: Any, *_: Any, **options: Any) -> requests.Response:
        def read(sockets: Sockets) -> requests.Response:
            _sockets.set(sockets)  # in its thread alone
            return self._read(request, {**options, "stream": True})

        close_old_connections()  # of this thread: others need it if the provider is slow
        return _REQUESTS.send(request.url, SECONDS, read)

    def _read(
        self, request: requests.PreparedRequest, options: dict[str, Any]
    ) -> requests.Response:
        response = super().send(request, **options)
        try:
            body = response.raw.read(MAX_BYTES + 1, decode_content=True)
        except urllib3.exceptions.HTTPError as error:
            raise requests.ConnectionError(str(error), request=request) from error
        finally:
            response.raw.close()
        if len(body) > MAX_BYTES:
            raise requests.RequestException(f"{request.url} sent more than {MAX_BYTES} bytes")
        if response.is_redirect:
            raise requests.RequestException(f"{request.url} redirects to another address")
        response.raw = urllib3.HTTPResponse(BytesIO(body), preload_content=False)
        return response


def _use_pools(manager: Any) -> object:
    manager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}
    return manager


class _Session(OAuth2Session):  # type: ignore[misc]
    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)
        limit(self)


class Client(DjangoOAuth2App):  # type: ignore[misc]
    """Authlib's client, with bounded requests."""

    client_cls = _Session


def limit(session: requests.Session) -> requests.Session:
    for scheme in ("http://", "https://"):
        session.mount(scheme, _Bounded())
    return session


def read(url: str) -> object:
    """Return the JSON document at a URL. Raises OSError, of which requests' errors are, and
    ValueError."""
    with limit(requests.Session()) as session:
        response = session.get(url, timeout=SILENT)
        response.raise_for_status()
        return response.json()


def write_basic(
    client: Any, _method: str, uri: str, headers: Any, body: Any
) -> tuple[str, object, object]:
    """Put the client's id and secret into a header, percent-encoded as RFC 6749 wants it (section
    2.3.1). Authlib encodes neither."""
    name = quote(client.client_id, safe=_PLAIN.replace(":", ""))
    text = f"{name}:{quote(client.client_secret, safe=_PLAIN)}"
    headers["Authorization"] = f"Basic {b64encode(text.encode()).decode()}"
    return uri, headers, body
