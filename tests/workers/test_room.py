"""What a worker takes next, by what it has."""

from completions.jobs.execute import Claim
from completions.jobs.new_job import Level
from workers.room import LOOK_AHEAD, MAX_TAKE_BYTES, is_used_up, measure_room

MIB = 2**20


def claim(level: Level, sequences: int = 1, size: int = 0, organization: str = "1") -> Claim:
    return Claim("job", 1, b"", 60, 1, organization, level=level, sequences=sequences, size=size)


def test_an_empty_worker_has_room_for_its_slots_and_some_more() -> None:
    for room in measure_room([], 4, 64 * MIB):
        assert (room.sequences, room.bytes) == (4 + LOOK_AHEAD, MAX_TAKE_BYTES)
        assert (room.guests, room.held) == (LOOK_AHEAD, [])


def test_lower_levels_take_no_room_from_higher_ones() -> None:
    claims = [claim(Level.BATCH, 10, 60 * MIB), claim(Level.LIVE, 2, 8 * MIB, "2")]
    urgent, live, background, batch = measure_room(claims, 4, 64 * MIB)
    assert (urgent.sequences, urgent.bytes) == (20, 8 * MIB)
    assert (live.sequences, live.bytes, live.held) == (18, 8 * MIB, ["2"])
    assert (background.sequences, background.held) == (18, [])
    assert (batch.sequences, batch.bytes, batch.held) == (8, -4 * MIB, ["1"])


def test_guests_are_few() -> None:
    full = [claim(Level.LIVE, 4 + LOOK_AHEAD)]
    assert measure_room(full, 4, MIB)[Level.LIVE].guests == LOOK_AHEAD
    guests = [claim(Level.LIVE, 1, 0, str(n)) for n in range(LOOK_AHEAD)]
    _, live, background, _ = measure_room(full + guests, 4, MIB)
    assert live.guests == 0
    assert background.guests == LOOK_AHEAD  # others have filled it
    heavy = [claim(Level.LIVE, 1, 2 * MIB)]
    assert [room.guests for room in measure_room(heavy, 4, MIB)] == [LOOK_AHEAD, 0, 0, 0]


def test_room_is_used_up_on_any_level_in_sequences_or_bytes() -> None:
    rooms = measure_room([], 4, MIB)
    assert not is_used_up(rooms, [claim(Level.LIVE, 19, MIB - 1), claim(Level.BATCH, 19)])
    assert is_used_up(rooms, [claim(Level.BATCH, 12), claim(Level.BATCH, 8)])
    assert is_used_up(rooms, [claim(Level.URGENT, 1, MIB)])
    assert is_used_up(measure_room([claim(Level.BATCH, 20)], 4, MIB), [])
