"""One POST to a third party's server: no redirect, no private network, bounded in time."""

import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from socket import SHUT_RDWR, SOCK_STREAM, create_connection, getaddrinfo, socket
from threading import BoundedSemaphore, Thread, Timer
from urllib.parse import urlsplit

SECONDS = 10.0
"""Seconds for the DNS lookup, the connection and the whole response."""
_MOST_ADDRESSES = 4
"""Addresses of a host that are tried; a name may have any number of them."""
_LATE = "timed out"
_LOOKUPS = BoundedSemaphore(100)
"""DNS lookups under way. Resolvers have time limits of their own, which may be minutes."""


class RefusedError(Exception):
    """Deliveries may not go to this address. The message says why."""


def post(url: str, body: bytes, headers: Mapping[str, str], allows_private: bool) -> int:
    """Send the body. Returns the status of the response, whose body is not read.

    Connects to an address that was checked, so that no second DNS lookup can lead elsewhere.
    Raises RefusedError, OSError and HTTPException.
    """
    parts = urlsplit(url)
    host, secure = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    deadline = time.monotonic() + SECONDS
    addresses = _checked(host, port, allows_private, deadline)
    connection = (HTTPSConnection if secure else HTTPConnection)(host, port, timeout=SECONDS)
    try:
        connection.sock = _connected(addresses, port, deadline)
        with _cut_off(connection.sock, deadline):
            if secure:
                context = ssl.create_default_context()
                connection.sock = context.wrap_socket(connection.sock, server_hostname=host)
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("POST", target, body, dict(headers))
            return connection.getresponse().status
    finally:
        connection.close()


def _connected(addresses: Sequence[str], port: int, deadline: float) -> socket:
    """A connection to the first address that accepts one. Raises the last one's OSError.

    Each address gets a share of the time: one that drops packets leaves some to the others.
    """
    tried = addresses[:_MOST_ADDRESSES]
    for index, address in enumerate(tried[:-1]):
        with suppress(OSError):
            share = _left(deadline) / (len(tried) - index)
            return create_connection((address, port), share)
    return create_connection((tried[-1], port), _left(deadline))


def _left(deadline: float) -> float:
    """Seconds until the deadline, for a timeout: not zero, which means something else."""
    return max(0.1, deadline - time.monotonic())


@contextmanager
def _cut_off(sock: socket, deadline: float) -> Iterator[None]:
    """End the connection at the deadline. Raises TimeoutError then.

    A socket's timeout is for each read: a server that sends a byte now and then, or "100 Continue"
    without end, would hold the deliveries to all others.
    """
    with sock.dup() as end:  # the socket itself becomes one of TLS

        def cut() -> None:
            with suppress(OSError):  # it is over already
                end.shutdown(SHUT_RDWR)

        timer = Timer(_left(deadline), cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        except Failures as error:
            if time.monotonic() >= deadline:
                raise TimeoutError(_LATE) from error
            raise
        finally:
            timer.cancel()
            timer.join()  # it must not shut down whatever has the number of `end` next
    if time.monotonic() >= deadline:  # the status may be there, and the rest was cut off
        raise TimeoutError(_LATE)


def _checked(host: str, port: int, allows_private: bool, deadline: float) -> Sequence[str]:
    """The host's addresses, all of which must be allowed."""
    found = _looked_up(host, port, deadline)
    for address in found:
        if not allows_private and not _is_public(address):
            raise RefusedError(f"{host} resolves to {address}, which is not a public address")
    return found


def _looked_up(host: str, port: int, deadline: float) -> list[str]:
    """The addresses of a host. Raises OSError.

    The system's lookup cannot be interrupted, so a thread waits for it, and nobody for the thread
    once the deadline has passed.
    """
    lookups = _LOOKUPS
    if not lookups.acquire(timeout=_left(deadline)):
        raise TimeoutError(f"the DNS lookups before that of {host} have not ended")
    found: Future[list[str]] = Future()

    def look_up() -> None:
        try:
            rows = getaddrinfo(host, port, type=SOCK_STREAM)
            found.set_result([str(row[4][0]) for row in rows])
        except Exception as error:  # noqa: BLE001 - raised to the caller
            found.set_exception(error)
        finally:
            lookups.release()

    Thread(target=look_up, daemon=True, name="dns").start()
    try:
        return found.result(_left(deadline))
    except TimeoutError as error:  # also that of the lookup itself
        raise TimeoutError(f"the DNS lookup of {host} timed out") from error


def _is_public(address: str) -> bool:
    """Whether the address belongs to the internet; the IPv4 address decides where it contains one,
    to which a gateway would translate it."""
    where = ip_address(address.partition("%")[0])  # without the scope of a link-local address
    if isinstance(where, IPv6Address):
        inner = where.ipv4_mapped or where.sixtofour
        if where in _NAT64:
            inner = IPv4Address(int(where) & 0xFFFF_FFFF)
        if inner is None:
            return where.is_global and where in _UNICAST
        where = inner
    return where.is_global and not where.is_multicast


_UNICAST, _NAT64 = ip_network("2000::/3"), ip_network("64:ff9b::/96")
"""The IPv6 addresses of the internet (RFC 4291), and those of IPv4 behind a gateway (RFC 6052)."""

Failures = (RefusedError, OSError, HTTPException, ValueError)
"""What :func:`post` raises; an invalid host name raises ValueError."""
