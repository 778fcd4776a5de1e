"""Admission control for bursts. asyncio runs every ready callback before it polls sockets again, so
1,000 simultaneous requests would stall running streams for seconds; PER_TURN are admitted per
iteration of the loop."""

import asyncio
from collections import deque

PER_TURN = 32
"""Requests admitted per iteration of the event loop, which takes some tens of milliseconds."""


class AdmissionLimiter:
    """Admission limiter of one event loop."""

    def __init__(self, per_turn: int = PER_TURN) -> None:
        self._per_turn = self._free = per_turn
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turning = False

    async def wait(self) -> None:
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
            asyncio.get_running_loop().call_soon(self._admit)

    def _admit(self) -> None:
        self._turning = False
        self._free = self._per_turn
        while self._waiting and self._free:
            if not (first := self._waiting.popleft()).done():  # done if its client hung up
                first.set_result(None)
                self._free -= 1
        if self._waiting or self._free < self._per_turn:
            self._schedule()
