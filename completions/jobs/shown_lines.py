"""Lines: what streams gained in a step, as their web processes see it before it is stored.

An entry of a web process's control stream has the lines of one step of one worker, in the field
`s`. A line is a JSON array, and the scripts read its head:

    ["job", attempt, sequence number, number of choices, tokens, [choice ...], ...]
    ["job", attempt, 0, 0, 0, {"s": 9, "end": ...}]

The choices and the end are those of events (`jobs/events.py`).
"""

from collections.abc import Iterator

import orjson

from completions.jobs.events import Event, note_time, read_choices, read_end

FIELD = b"s"


def encode_line(
    job_id: str, attempt: int, first: int, count: int, tokens: int, gains: bytes
) -> bytes:
    """Return the line of encoded choices."""
    return b'["%b",%d,%d,%d,%d,%b]' % (job_id.encode(), attempt, first, count, tokens, gains)


def join_lines(lines: list[bytes]) -> bytes:
    return b"\n".join(lines)


def decode_lines(entry_id: bytes, lines: bytes) -> Iterator[tuple[str, Event]]:
    """Yield the job and the event of each line. JSON has no line break within a value."""
    for job_id, _, first, count, _, *gains in orjson.loads(b"[%b]" % lines.replace(b"\n", b",")):
        if count:
            yield job_id, read_choices(first, gains)
        else:
            yield job_id, note_time(entry_id, read_end(gains[0]))
