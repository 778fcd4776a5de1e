"""How much more a worker takes from the queue, by level."""

from collections.abc import Sequence
from typing import Final

from completions.jobs.execute import Claim, Room
from completions.jobs.new_job import Level

LOOK_AHEAD: Final = 16
"""Sequences taken beyond the engine's slots, so that a free slot never waits for Redis. More would
only move the queue into the worker. Also how many organizations without a job here may have one
each although the others have used up all room."""
MAX_HELD_BYTES: Final = 64 * 1024 * 1024
"""Bytes of requests as JSON, by default. As objects of Python, they take ten times as much."""
MAX_TAKE_BYTES: Final = 8 * 1024 * 1024
"""Bytes after which a call to Redis takes no further job, so that it does not hold up others."""


def measure_room(claims: Sequence[Claim], slots: int, max_bytes: int) -> list[Room]:
    """Measure what a worker with these jobs takes next. Jobs of lower levels take no room from
    higher ones, since the engine preempts them. So a worker holds at most about `max_bytes` on each
    level, and twice as much with one job each of many organizations."""
    rooms = []
    sequences, size = slots + LOOK_AHEAD, max_bytes
    for level in Level:
        own = [claim for claim in claims if claim.level == level]
        used = sum(claim.sequences for claim in own)
        sequences -= used
        size -= sum(claim.size for claim in own)
        guests = LOOK_AHEAD - min(used, max(0, -sequences)) if size > -max_bytes else 0
        organizations = sorted({claim.organization_id for claim in own})
        rooms.append(Room(level, sequences, min(size, MAX_TAKE_BYTES), guests, organizations))
    return rooms


def is_used_up(rooms: Sequence[Room], claims: Sequence[Claim]) -> bool:
    """Return whether jobs that were taken into these rooms use one of them up, so that others may
    have been left."""
    for room in rooms:
        own = [claim for claim in claims if claim.level == room.level]
        sequences, size = sum(it.sequences for it in own), sum(it.size for it in own)
        if sequences >= room.sequences or size >= room.bytes:
            return True
    return False
