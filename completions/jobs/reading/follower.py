"""One client's place in one job's events."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from completions.jobs.events import ChoiceEvent, EndEvent, Event, measure
from completions.jobs.reading.blocking_requests import ReaderLostError

BACKLOG = 1024
"""Events that a slow follower may fall behind before it must read them itself."""
Take = Callable[[Sequence[ChoiceEvent]], bool]
"""Is offered what a step gained, where its task waits for it and for nothing else. Returns False to
have it queued for that task."""


class BehindError(Exception):
    """A follower's next entries were dropped, and must be read again."""


class Follower:
    """One client's place in one job's events. `take` is never offered an end.

    An event may come twice: with the lines of its step, and from the job's own stream. Its numbers
    say which part of it the client does not have yet.

    A task that waits costs some tens of microseconds to wake. So what comes while it waits is
    offered to `take` instead. Once something is queued, all that follows is, until the task waits
    again: nothing overtakes.
    """

    __slots__ = (
        "_clock", "_heard_at", "_is_waiting", "_queue", "_reason", "_silent", "_take", "_timer",
        "_wake", "next_number", "number", "overflowed", "seen",
    )  # fmt: skip

    def __init__(self, seen: bytes, number: int, take: Take | None = None) -> None:
        self.seen = seen
        """The id of an entry of the job's own stream: the client has all before the next one."""
        self.number = number
        """Number of the next event that the client gets."""
        self.next_number = number
        """Number after the last event that was offered."""
        self.overflowed = False
        """Whether events were dropped, because the client is slow."""
        self._take = take
        self._queue: deque[tuple[bytes, Event]] = deque()
        """Events, each with the id of its entry in the job's own stream, if it came from there."""
        self._wake = asyncio.Event()
        self._is_waiting = False
        self._reason: Exception | None = None
        """Why it cannot go on."""
        self._silent = False
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self._clock = asyncio.get_running_loop().time

    def offer_entry(self, entry_id: bytes, event: Event) -> None:
        """Give the client the next entry of the job's own stream."""
        first, after = measure(event)
        if after > self.next_number or isinstance(event, EndEvent):
            self._offer(entry_id, event, first, after)

    def offer_line(self, event: Event) -> bool:
        """Give the client what a step shows. Returns False if that has to wait for what is before
        it, which only the job's own stream has."""
        first, after = measure(event)
        if first > self.next_number:
            return False
        # An end has a lower number if Redis has lost what was before it.
        if after > self.next_number or isinstance(event, EndEvent):
            self._offer(b"", event, first, after)
        return True

    def _offer(self, entry_id: bytes, event: Event, first: int, after: int) -> None:
        if self._reason is not None:  # the client would see a gap
            return
        if first < self.next_number:
            event = trim(event, self.next_number)
        self.next_number = after
        if self._is_waiting and self._take is not None and self._is_taken(entry_id, event, after):
            return
        if len(self._queue) >= BACKLOG:
            self.overflowed = True
        if not self.overflowed:
            self._queue.append((entry_id, event))
        self._wake_up()

    def fail(self, reason: Exception) -> None:
        """Have the client's task raise ReaderLostError, after what is queued."""
        self._reason = ReaderLostError(str(reason))
        self._reason.__cause__ = reason
        self._wake_up()

    def _is_taken(self, entry_id: bytes, event: Event, after: int) -> bool:
        assert self._take is not None
        try:
            if isinstance(event, EndEvent) or not self._take(event):
                return False
        except Exception as error:  # noqa: BLE001 - its own task raises it; the reader goes on
            self._reason = error
            self._wake_up()
            return True
        self._heard_at = self._clock()
        self.seen, self.number = entry_id or self.seen, after
        return True

    def _advance(self, entry_id: bytes, event: Event) -> None:
        self.seen = entry_id or self.seen
        self.number = measure(event)[1]
        self.next_number = max(self.next_number, self.number)

    async def read(self, patience: float) -> Event | None:
        """Return the next event, as soon as there is one, or None after a silence of `patience`
        seconds. Raises ReaderLostError, and BehindError once nothing is left before events that
        were dropped."""
        while True:
            while self._queue:
                if (event := self.catch_up(*self._queue.popleft())) is not None:
                    return event
            if self.overflowed:
                raise BehindError
            if self._reason is not None:
                raise self._reason
            if self._silent:
                self._silent = False
                return None
            self._wake.clear()
            if patience < float("inf"):
                self._listen(patience)
            self._is_waiting = True
            try:
                await self._wake.wait()
            finally:
                self._is_waiting = False

    def catch_up(self, entry_id: bytes, event: Event) -> Event | None:
        """Return what the client does not have yet of an event that comes before all that is
        offered from now on, and note that it gets it."""
        if not isinstance(event, EndEvent) and measure(event)[1] <= self.number:
            self.seen = entry_id or self.seen
            return None
        event = trim(event, self.number)
        self._advance(entry_id, event)
        return event

    def _wake_up(self) -> None:
        self._is_waiting = False
        self._wake.set()

    def _listen(self, patience: float) -> None:
        """Wake `patience` seconds after the last event. Events do not move the timer; it checks
        whether it fired too early."""
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(patience, self._look, patience)

    def _look(self, patience: float) -> None:
        loop = asyncio.get_running_loop()
        due, self._timer = self._heard_at + patience, None
        if loop.time() < due:
            self._timer = loop.call_at(due, self._look, patience)
        else:
            self._silent = True
            self._wake_up()

    def close(self) -> None:
        self._is_waiting = False
        if self._timer is not None:
            self._timer.cancel()


def trim(event: Event, number: int) -> Event:
    """Return the part of an event from a number on."""
    if isinstance(event, EndEvent):
        return event
    have = number - event[0].sequence_number
    return event[have:] if have > 0 else event
