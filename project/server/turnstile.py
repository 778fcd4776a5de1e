"""Admits a burst of requests a few at a time, so that running streams continue: the event loop runs
everything that is ready before it polls its sockets, and a thousand requests take seconds."""

import asyncio
from collections import deque

PER_TURN = 32
"""Requests admitted per iteration of the event loop, which takes some tens of milliseconds."""


class Turnstile:
    """A queue of requests, bound to one event loop."""

    def __init__(self, per_turn: int = PER_TURN) -> None:
        self._per_turn = self._free = per_turn
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turning = False

    async def enter(self) -> None:
        """Return at once while there is room in this iteration, else in the order of arrival."""
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
            if not (first := self._waiting.popleft()).done():  # done if its client hung up
                first.set_result(None)
                self._free -= 1
        if self._waiting or self._free < self._per_turn:
            self._schedule()
