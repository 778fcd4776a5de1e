"""Lets a burst of requests in a few at a time, so that the streams that run go on meanwhile.

The event loop runs all that is ready before it looks at its sockets again. A thousand requests that
arrive together are seconds of work, for which no token and no reply of Redis would be read.
"""

import asyncio
from collections import deque

PER_TURN = 32
"""Requests that may begin in a turn of the event loop: some tens of milliseconds of work, so that
what each turn costs for the streams that run is not paid for every few of them."""


class Turnstile:
    """Bound to one event loop."""

    def __init__(self, per_turn: int = PER_TURN) -> None:
        self._per_turn = self._free = per_turn
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turning = False

    async def enter(self) -> None:
        """At once while few come, else in the order of arrival."""
        if self._free and not self._waiting:
            self._free -= 1
            self._schedule()
            return
        self._waiting.append(mine := asyncio.get_running_loop().create_future())
        self._schedule()
        await mine

    def _schedule(self) -> None:
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        self._free = self._per_turn
        while self._waiting and self._free:
            if not (first := self._waiting.popleft()).done():  # as it is if its client hung up
                first.set_result(None)
                self._free -= 1
        if self._waiting or self._free < self._per_turn:
            self._schedule()
