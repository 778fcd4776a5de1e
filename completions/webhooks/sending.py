"""One POST to a third party's server: no redirect, no private network, bounded in time."""

import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from socket import SOCK_STREAM, create_connection, getaddrinfo, socket
from urllib.parse import urlsplit

from completions.outgoing import Requests, Sockets

SECONDS = 10.0
"""Seconds for the DNS lookup, the connection and the whole response."""
_MAX_ADDRESSES = 4
"""Addresses of a host that are tried; a name may have any number of them."""
_REQUESTS = Requests(100)


class RefusedError(Exception):
    """Deliveries may not go to this address. The message says why."""


def post(url: str, body: bytes, headers: Mapping[str, str], allows_private: bool) -> int:
    """Send the body. Returns the status of the response, whose body is not read.

    Raises RefusedError, OSError and HTTPException.
    """
    parts = urlsplit(url)
    host, secure = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection = (HTTPSConnection if secure else HTTPConnection)(host, port, timeout=SECONDS)
    deadline = time.monotonic() + SECONDS

    def send(sockets: Sockets) -> int:
        try:
            # To an address that was checked, so that no second DNS lookup can lead elsewhere.
            connection.sock = _connect(_check_addresses(host, port, allows_private), port, deadline)
            sockets.add(connection.sock)
            if secure:
                context = ssl.create_default_context()
                connection.sock = context.wrap_socket(connection.sock, server_hostname=host)
            connection.request("POST", target, body, dict(headers))
            return connection.getresponse().status
        finally:
            connection.close()

    return _REQUESTS.send(host, SECONDS, send)


def _check_addresses(host: str, port: int, allows_private: bool) -> Sequence[str]:
    """Return the host's addresses, all of which must be allowed."""
    addresses = [str(row[4][0]) for row in getaddrinfo(host, port, type=SOCK_STREAM)]
    for address in addresses:
        if not allows_private and not _is_public(address):
            raise RefusedError(f"{host} resolves to {address}, which is not a public address")
    return addresses


def _connect(addresses: Sequence[str], port: int, deadline: float) -> socket:
    """Connect to the first address that accepts. Raises the last one's OSError.

    Each address gets a share of the time: one that drops packets leaves some to the others.
    """
    tried = addresses[:_MAX_ADDRESSES]
    for index, address in enumerate(tried[:-1]):
        with suppress(OSError):
            return create_connection(
                (address, port), _measure_time_left(deadline) / (len(tried) - index)
            )
    return create_connection((tried[-1], port), _measure_time_left(deadline))


def _measure_time_left(deadline: float) -> float:
    """Return the seconds until the deadline, for a timeout: not zero, which means something
    else."""
    return max(0.1, deadline - time.monotonic())


def _is_public(address: str) -> bool:
    """Return whether the address belongs to the internet; the IPv4 address decides where it
    contains one, to which a gateway would translate it."""
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
