"""Sums over rows of UsageHour in SQL."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import CharField, Sum
from django.db.models.functions import Cast, Coalesce, Left

Sums = Mapping[str, Any]
"""The values of columns of UsageHour, by their names."""
PREFIX = "sum_"
"""Prepended because Django refuses an aggregate named like a column."""
DAYS, HOURS, MINUTES = len("2026-11-20"), len("2026-11-20 15"), len("2026-11-20 15:30")


def make_hour_sums(names: Sequence[str]) -> dict[str, object]:
    return {f"{PREFIX}{name}": Coalesce(Sum(name), 0) for name in names}


def rename_sums(row: Mapping[str, object]) -> dict[str, Any]:
    return {name.removeprefix(PREFIX): value for name, value in row.items()}


def cut_time(column: str, length: int) -> object:
    """Return the beginning of a UTC time as text; `length` is DAYS, HOURS or MINUTES.

    Django's Trunc is slow: on SQLite it calls a Python function for every row.
    """
    return Left(Cast(column, CharField()), length)
