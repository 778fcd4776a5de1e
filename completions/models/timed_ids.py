"""Ids that carry the time of their row, so that a list goes on after a row that was deleted."""

import re
import secrets
import time
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime(9999, 12, 31, tzinfo=UTC)
_FORM = re.compile(r"[a-z]+[-_]([0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15})")
_FRACTIONS = 4096
"""Parts of a millisecond in an id: more than enough for each microsecond to have its own."""


def new_id(prefix: str, at: datetime | None = None) -> str:
    """Return `prefix` and a UUID of version 7 (RFC 9562, section 5.7; the time as in section 6.2,
    method 3). 62 bits are random. `at` is now by default."""
    if at is None:
        microseconds = time.time_ns() // 1000
    else:
        microseconds = (at - _EPOCH) // timedelta(microseconds=1)
    milliseconds, rest = divmod(microseconds, 1000)
    fraction = -(-rest * _FRACTIONS // 1000)
    value = milliseconds << 80 | 0x7 << 76 | fraction << 64 | 0b10 << 62 | secrets.randbits(62)
    return f"{prefix}{value:032x}"


def read_time(row_id: str) -> datetime | None:
    """Return the time in an id, to the microsecond; None if it has another form, as the ids of
    earlier versions have."""
    match = _FORM.fullmatch(row_id)
    if match is None:
        return None
    value = int(match[1], 16)
    milliseconds, fraction = value >> 80, value >> 64 & _FRACTIONS - 1
    since = timedelta(milliseconds=milliseconds, microseconds=fraction * 1000 // _FRACTIONS)
    return _EPOCH + since if since <= _LAST - _EPOCH else None
