"""Refused requests: counted in the memory of a web process, stored in SQL every few seconds."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from django.db import models, transaction
from django.db.models import F
from django.utils import timezone

from completions.models import ApiKey, Refusal, WrongKey
from completions.models.refusals import ADDRESS_LENGTH, MESSAGE_LENGTH
from completions.models.storable import replace_nul

_R = TypeVar("_R", Refusal, WrongKey)

STORE_INTERVAL = 5.0
"""Seconds between two writes of a web process. A process that is killed loses as much."""
MAX_WRONG_KEYS = 500
"""The secrets and addresses that a web process tells apart in one hour. Anyone can make up keys:
they must not fill the table."""
_LISTED = 8
"""The most rows of a list for the admin."""


class _Cell(NamedTuple):
    organization_id: int
    api_key_id: int
    code: str
    hour: datetime


class _WrongCell(NamedTuple):
    masked: str
    address: str
    code: str
    hour: datetime


@dataclass(slots=True)
class _Count:
    count: int
    latest: dict[str, object]
    """The values of the other columns, from the latest refusal."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What has not been stored yet."""

    refusals: dict[_Cell, _Count] = field(default_factory=dict)
    wrong_keys: dict[_WrongCell, _Count] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.refusals or self.wrong_keys)


class RefusalCounter:
    """Counts the refusals of one web process."""

    def __init__(self, now: Callable[[], datetime] = timezone.now) -> None:
        self._now = now
        self._counts = Counts()
        self._seen: set[tuple[str, str]] = set()
        self._seen_in: datetime | None = None

    def count(
        self, organization_id: int, api_key_id: int, code: str, message: str, request_id: str
    ) -> None:
        """Count a refused request of a known key."""
        now = self._now()
        cell = _Cell(organization_id, api_key_id, code, _find_hour(now))
        message = replace_nul(message)[:MESSAGE_LENGTH]
        latest = {"at": now, "message": message, "request_id": request_id}
        _add(self._counts.refusals, cell, _Count(1, latest))

    def count_wrong_key(self, masked: str, address: str, code: str) -> None:
        """Count a request with a secret that is not valid. A proxy may send any text as the
        address."""
        now = self._now()
        address = replace_nul(address)[:ADDRESS_LENGTH]
        hour = _find_hour(now)
        if hour != self._seen_in:
            self._seen, self._seen_in = set(), hour
        if len(self._seen) < MAX_WRONG_KEYS:
            self._seen.add((masked, address))
        if (masked, address) not in self._seen:
            masked = address = ""
        cell = _WrongCell(masked, address, code, hour)
        _add(self._counts.wrong_keys, cell, _Count(1, {"at": now}))

    def take(self) -> Counts:
        """Return what was counted since the last call."""
        counts, self._counts = self._counts, Counts()
        return counts

    def put_back(self, counts: Counts) -> None:
        """Count again what could not be stored."""
        newer = self.take()
        self._counts = counts
        for cell, count in newer.refusals.items():
            _add(counts.refusals, cell, count)
        for wrong, count in newer.wrong_keys.items():
            _add(counts.wrong_keys, wrong, count)


def store(counts: Counts) -> None:
    """Add counts to their rows, in one transaction. Those of deleted keys are dropped."""
    known = set(
        ApiKey.objects.filter(pk__in={cell.api_key_id for cell in counts.refusals}).values_list(
            "pk", flat=True
        )
    )
    with transaction.atomic():
        # In a fixed order, so that processes cannot deadlock.
        for cell in sorted(counts.refusals):
            if cell.api_key_id in known:
                _store(Refusal, cell, counts.refusals[cell])
        for wrong in sorted(counts.wrong_keys):
            _store(WrongKey, wrong, counts.wrong_keys[wrong])


def select_refusals(since: datetime) -> models.QuerySet[Refusal]:
    """Select the refusals of the hours from the one that contains `since`."""
    return Refusal.objects.filter(hour__gte=_find_hour(since))


def count_wrong_keys(masked: Collection[str], since: datetime) -> list[dict[str, Any]]:
    """Count the refused uses of these secrets, by secret, code and address, the latest first."""
    rows = WrongKey.objects.filter(hour__gte=_find_hour(since), masked__in=masked)
    groups = rows.order_by().values("masked", "code", "address")
    sums = groups.annotate(total=models.Sum("count"), newest=models.Max("at"))
    return [dict(row) for row in sums.order_by("-newest")[:_LISTED]]


@dataclass(frozen=True, slots=True)
class CodeSum:
    """The refusals with one code: their number, and the row of the latest."""

    code: str
    count: int
    latest: Refusal


def rank_codes(rows: models.QuerySet[Refusal]) -> list[CodeSum]:
    """Return the most frequent codes of these rows."""
    groups = rows.order_by().values("code")
    sums = groups.annotate(total=models.Sum("count"), newest=models.Max("at"))
    ranking = list(sums.order_by("-total", "code")[:_LISTED])
    newest = rows.filter(at__in=[each["newest"] for each in ranking]).select_related("api_key")
    latest = {(row.code, row.at): row for row in newest}
    return [
        CodeSum(each["code"], each["total"], row)
        for each in ranking
        if (row := latest.get((each["code"], each["newest"])))  # else a later one came meanwhile
    ]


def _find_hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def _add(counts: dict[Any, _Count], cell: object, more: _Count) -> None:
    if (counted := counts.get(cell)) is None:
        counts[cell] = more
    else:
        counted.count += more.count
        counted.latest = more.latest


def _store(table: type[_R], cell: NamedTuple, count: _Count) -> None:
    where = cell._asdict()
    rows = table._default_manager.filter(**where)
    if not rows.update(count=F("count") + count.count, **count.latest):
        new = table(**where, **count.latest)
        table._default_manager.bulk_create([new], ignore_conflicts=True)
        rows.update(count=F("count") + count.count, **count.latest)
