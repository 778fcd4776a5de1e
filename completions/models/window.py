"""Completion windows, as clients write them: `30m`, `24h`, `2d`."""

import re
from datetime import timedelta

_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}
_FORM = re.compile(r"([0-9]{1,5})([mhd])")
SHORTEST, LONGEST = timedelta(minutes=1), timedelta(days=7)
EXPECTED_WINDOW = 'must be minutes, hours or days from "1m" to "7d", such as "30m", "24h" or "2d"'


def parse_window(text: str) -> timedelta:
    """Return the length of a window. Raises ValueError."""
    match = _FORM.fullmatch(text)
    length = int(match[1]) * _UNITS[match[2]] if match else timedelta()
    if not SHORTEST <= length <= LONGEST:
        raise ValueError(EXPECTED_WINDOW)
    return length
