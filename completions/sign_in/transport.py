"""HTTP to the provider, bounded in time and size, through `requests`. That library is optional, so
this module is imported where it is needed."""

import socket
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import ContextVar
from io import BytesIO
from threading import BoundedSemaphore, Lock, Thread
from typing import Any
from urllib.parse import quote

import requests
import urllib3
from authlib.integrations.django_client import DjangoOAuth2App
from authlib.integrations.requests_client import OAuth2Session
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

SILENT = 5.0
"""Seconds that the provider may be silent in any request to it."""
SECONDS = 10.0
"""Seconds that a request may take from the lookup of the host to the end of its response."""
MOST_BYTES = 2 * 1024 * 1024
"""The largest response."""
_REQUESTS = BoundedSemaphore(32)
"""Requests under way, of which lookups may last for minutes."""
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) not in "%+")
"""Characters that a provider reads alike, whether it decodes the client's secret or not."""


class _Sockets:
    """The sockets of one request, which end together once its time is over.

    A timeout of a socket is for each read: a provider that sends a byte now and then would hold a
    thread of this server as long as it likes.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._ends: list[socket.socket] = []
        self._is_over = False

    def add(self, sock: socket.socket) -> None:
        with self._lock:
            self._ends.append(sock.dup())  # the socket itself becomes one of TLS
        if self._is_over:
            self.cut()

    def cut(self) -> None:
        self._is_over = True
        with self._lock:
            for end in self._ends:
                with suppress(OSError):  # it is over already
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._lock:  # `cut` must not shut down whatever has the number of a closed one next
            for end in self._ends:
                end.close()
            self._ends.clear()


_sockets: ContextVar[_Sockets] = ContextVar("_sockets")


class _Connection(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        made = super()._new_conn()
        _sockets.get().add(made)
        return made


class _SecureConnection(HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        made = super()._new_conn()
        _sockets.get().add(made)
        return made


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


class _Bounded(HTTPAdapter):
    """Reads each response as a whole, within SECONDS and MOST_BYTES. Follows no redirects, which
    could lead the client's secret elsewhere."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        _use_pools(self.poolmanager)

    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        return _use_pools(super().proxy_manager_for(*args, **options))

    def send(self, request: Any, *_: Any, **options: Any) -> requests.Response:
        return limited(request.url, lambda: self._read(request, {**options, "stream": True}))

    def _read(self, request: Any, options: dict[str, Any]) -> requests.Response:
        response = super().send(request, **options)
        try:
            body = response.raw.read(MOST_BYTES + 1, decode_content=True)
        except urllib3.exceptions.HTTPError as error:
            raise requests.ConnectionError(str(error), request=request) from error
        finally:
            response.raw.close()
        if len(body) > MOST_BYTES:
            raise requests.RequestException(f"{request.url} answers more than {MOST_BYTES} bytes")
        if response.is_redirect:
            raise requests.RequestException(f"{request.url} redirects to another address")
        response.raw = urllib3.HTTPResponse(BytesIO(body), preload_content=False)
        return response


def _use_pools(manager: Any) -> Any:
    manager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}
    return manager


def limited(url: str, work: Callable[[], requests.Response]) -> requests.Response:
    """Do the work in a thread. After SECONDS, end its connections, and raise requests.Timeout.

    The system's lookup of a host name cannot be interrupted: nobody waits for the thread then.
    """
    if not _REQUESTS.acquire(blocking=False):
        raise requests.Timeout(f"{url} is not requested: too many requests wait for the provider")
    sockets, done = _Sockets(), Future[requests.Response]()

    def run() -> None:
        _sockets.set(sockets)  # in this thread alone
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised to the caller
            done.set_exception(error)
        finally:
            sockets.close()
            _REQUESTS.release()

    Thread(target=run, daemon=True, name="oidc").start()
    if not wait([done], SECONDS).done:
        sockets.cut()
        raise requests.Timeout(f"{url} did not answer within {SECONDS:g} s")
    return done.result()


class _Session(OAuth2Session):  # type: ignore[misc]
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        bound(self)


class Client(DjangoOAuth2App):  # type: ignore[misc]
    """Authlib's client, with bounded requests."""

    client_cls = _Session


def bound(session: requests.Session) -> requests.Session:
    for scheme in ("http://", "https://"):
        session.mount(scheme, _Bounded())
    return session


def read(url: str) -> Any:
    """The JSON document at a URL. Raises requests.RequestException and ValueError."""
    with bound(requests.Session()) as session:
        response = session.get(url, timeout=SILENT)
        response.raise_for_status()
        return response.json()


def basic(client: Any, _method: str, uri: str, headers: Any, body: Any) -> tuple[str, Any, Any]:
    """Put the client's id and secret into a header, percent-encoded as RFC 6749 wants it (section
    2.3.1). Authlib encodes neither."""
    name = quote(client.client_id, safe=_PLAIN.replace(":", ""))
    text = f"{name}:{quote(client.client_secret, safe=_PLAIN)}"
    headers["Authorization"] = f"Basic {b64encode(text.encode()).decode()}"
    return uri, headers, body
