"""Connections to the node of a cluster that has one hash slot.

A shard's keys lie in one slot, so that all of its commands go to one node, and a plain client does,
with dedicated connections and blocking reads. redis-py's `RedisCluster` would route every command
anew, and can do neither. A connection looks up the node when it is made. If the slot has moved, or
the node is no master any more, the connection ends as if it were lost; the next one finds the slot.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode

from redis.asyncio.connection import Connection as AsyncConnection
from redis.asyncio.connection import SSLConnection as AsyncSSLConnection
from redis.backoff import NoBackoff
from redis.connection import Connection, ConnectionPool, SSLConnection, parse_url
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MasterDownError,
    ReadOnlyError,
    RedisError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

_SCHEME = "cluster+"
_LOOKUP_TIMEOUT = 1.0
"""Seconds that a node may take to say who has a slot."""
_LOST = (AskError, ClusterDownError, MasterDownError, ReadOnlyError, TryAgainError)
"""Replies of a node that does not serve the slot, or not all of it. A MovedError is an AskError."""
Node = tuple[str, int]


def make_url(nodes: Sequence[str], prefix: str) -> str:
    """Return the URL of a shard in a cluster, from those of some nodes and the prefix of its
    keys, which has a hash tag."""
    query = urlencode({"slot": key_slot(prefix.encode()), "node": nodes[1:]}, doseq=True)
    return f"{_SCHEME}{nodes[0]}?{query}"


@dataclass(slots=True)
class Slot:
    """A slot of a cluster, and the nodes that may know who has it."""

    number: int
    nodes: list[Node]
    options: dict[str, Any] = field(default_factory=dict)
    """Of a connection: user, password, and those of TLS."""
    is_encrypted: bool = False

    def find_master(self) -> Node:
        """Ask one node after the other. Raises redis-py's ConnectionError if none says."""
        failure: RedisError | None = None
        for node in list(self.nodes):
            try:
                ranges = self._ask(node)
            except (RedisError, OSError) as error:
                failure = RedisConnectionError(str(error))
                continue
            self.nodes += sorted({each for _, _, each in ranges} - set(self.nodes))
            for first, last, master in ranges:
                if first <= self.number <= last:
                    return master
            failure = RedisConnectionError(f"no node has slot {self.number}")
        raise failure or RedisConnectionError("the cluster has no nodes")

    def _ask(self, node: Node) -> list[tuple[int, int, Node]]:
        """Return the first and the last slot of each range, and the node that has it."""
        made = SSLConnection if self.is_encrypted else Connection
        connection: Any = made(
            host=node[0], port=node[1], protocol=2, retry=Retry(NoBackoff(), 0), **self.options,
            socket_timeout=_LOOKUP_TIMEOUT, socket_connect_timeout=_LOOKUP_TIMEOUT,
        )  # fmt: skip
        try:
            connection.connect()
            connection.send_command("CLUSTER", "SLOTS")
            reply = connection.read_response()
        finally:
            connection.disconnect()
        return [
            # A node that knows no name of its own leaves it out.
            (int(first), int(last), ((master[0] or b"").decode() or node[0], int(master[1])))
            for first, last, master, *_ in reply
        ]


class _OfSlot(Connection):
    """A connection to the node that has a slot."""

    def __init__(self, *, slot: Slot, **options: Any) -> None:
        self._slot = slot
        super().__init__(**options)  # type: ignore[no-untyped-call]

    def connect(self) -> None:
        if self._sock is None:
            self.host, self.port = self._slot.find_master()
        super().connect()  # type: ignore[no-untyped-call]

    def read_response(self, *args: Any, **options: Any) -> object:
        try:
            return super().read_response(*args, **options)
        except _LOST as error:
            self.disconnect()  # type: ignore[no-untyped-call]
            raise RedisConnectionError(f"the shard has moved: {error}") from error


class _EncryptedOfSlot(_OfSlot, SSLConnection):
    pass


class _AsyncOfSlot(AsyncConnection):
    """The same for an event loop."""

    def __init__(self, *, slot: Slot, **options: Any) -> None:
        self._slot = slot
        super().__init__(**options)

    async def connect(self) -> None:
        if not self.is_connected:
            self.host, self.port = await asyncio.to_thread(self._slot.find_master)
        await super().connect()  # type: ignore[no-untyped-call]

    async def read_response(self, *args: Any, **options: Any) -> object:
        try:
            return await super().read_response(*args, **options)
        except _LOST as error:
            await self.disconnect(nowait=True)
            raise RedisConnectionError(f"the shard has moved: {error}") from error


class _AsyncEncryptedOfSlot(_AsyncOfSlot, AsyncSSLConnection):
    pass


def parse(url: str) -> tuple[str, Slot | None]:
    """Return the URL of one server, and the slot if `url` is one of :func:`make_url`."""
    if not url.startswith(_SCHEME):
        return url, None
    first, _, query = url.removeprefix(_SCHEME).rpartition("?")
    asked = parse_qs(query)
    urls = (first, *asked.get("node", ()))
    nodes = [parse_url(each) for each in urls]  # type: ignore[no-untyped-call]
    addresses = [(each.get("host", "localhost"), each.get("port", 6379)) for each in nodes]
    named = {"host", "port", "db", "connection_class"}
    options = {name: value for name, value in nodes[0].items() if name not in named}
    return first, Slot(int(asked["slot"][0]), addresses, options, first.startswith("rediss:"))


def follow(pool: Any, slot: Slot | None) -> None:
    """Make the pool of a client connect to the node that has the slot, if there is one."""
    if slot is not None:
        pool.connection_class = _KINDS[isinstance(pool, ConnectionPool), slot.is_encrypted]
        pool.connection_kwargs["slot"] = slot


_KINDS: Mapping[tuple[bool, bool], type] = {
    (True, False): _OfSlot,
    (True, True): _EncryptedOfSlot,
    (False, False): _AsyncOfSlot,
    (False, True): _AsyncEncryptedOfSlot,
}
"""By whether the pool is for threads, and whether the connection is encrypted."""
