"""Requests to servers of others, each bounded in time as a whole.

A socket's timeout applies to each read, so a server that trickles bytes could block a thread for
ever. The system's lookup of a host name has no timeout and cannot be interrupted.
"""

import socket
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from threading import BoundedSemaphore, Lock, Thread
from typing import TypeVar

_T = TypeVar("_T")


class Sockets:
    """The sockets of one request, which end together once its time is over."""

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


class Requests:
    """At most `most` requests at a time, each in a thread of its own."""

    def __init__(self, most: int) -> None:
        self._free = BoundedSemaphore(most)

    def send(self, where: str, seconds: float, request: Callable[[Sockets], _T]) -> _T:
        """Run the request, which adds its sockets to those that it is given. Raises TimeoutError
        after `seconds`, and ends the connections; a thread that still looks up a name is left
        behind."""
        if not self._free.acquire(blocking=False):
            raise TimeoutError(
                f"{where} got no request: too many requests to other servers are waiting"
            )
        sockets, done = Sockets(), Future[_T]()

        def run() -> None:
            try:
                done.set_result(request(sockets))
            except BaseException as error:  # noqa: BLE001 - raised to the caller
                done.set_exception(error)
            finally:
                sockets.close()
                self._free.release()

        try:
            Thread(target=run, daemon=True, name="outgoing").start()
        except RuntimeError:  # the system allows no further thread
            self._free.release()
            raise
        if not wait([done], seconds).done:
            sockets.cut()
            raise TimeoutError(f"{where} did not answer within {seconds:g} s")
        return done.result()
