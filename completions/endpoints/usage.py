"""GET /v1/usage: usage by hour or day, in the format of OpenAI's usage API."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from django.db.models import Q, QuerySet
from django.utils import timezone

from completions.accounts.keys import Principal
from completions.exceptions import APIError, invalid_parameter
from completions.http.base import APIRequest, AsyncAPIView
from completions.http.bodies import JSONResponse
from completions.http.query import refuse_unknown
from completions.models import ApiKey, Refusal, Scope, UsageHour
from completions.models.batches import BATCH_ID
from completions.models.organizations import parse_public_id
from completions.models.usage import FIRST_TOKEN, LATENCY, USAGE_COUNTS
from completions.usage import report
from completions.usage.report import UNITS, WIDTHS, UsageRow

_M = TypeVar("_M", UsageHour, Refusal)

GROUPS = ("model", "api_key_id", "adapter")
DEFAULT_GROUPS = ("model", "api_key_id")
PARAMETERS = ("start_time", "end_time", "bucket_width", "limit", "page", "batch")
ARRAYS = ("group_by", "models", "api_key_ids")
_UNSUPPORTED = {
    "project_ids": "There are no projects: select keys with api_key_ids.",
    "user_ids": "Usage is recorded by key, not by user: select keys with api_key_ids.",
}
"""Filters of OpenAI's API (https://platform.openai.com/docs/api-reference/usage/completions)."""
LIMITS = {"1d": (7, 31), "1h": (24, 168)}
"""Buckets per page by width: the default and the maximum."""
_PAGE = re.compile(r"page_([0-9]{1,11})")
_LATEST = 32_503_680_000
"""The year 3000. Python's dates end in 9999, and the end of a bucket must be a date too."""
_MAX_NAMES = 100
"""Maximum number of names in one parameter."""


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """A parsed query. Buckets start at `begin` or later, and before `end`."""

    width: str
    begin: datetime
    end: datetime
    groups: Sequence[str]
    models: Sequence[str]
    api_key_ids: Sequence[str]
    batch: Q
    limit: int

    @classmethod
    def parse(cls, request: APIRequest) -> "UsageQuery":
        """Read the query parameters. Raises APIError."""
        refuse_unknown(request, PARAMETERS, ARRAYS, _UNSUPPORTED)
        width = request.query_params.get("bucket_width", "1d")
        if width not in WIDTHS:
            raise invalid_parameter("bucket_width", width, f"one of: {', '.join(WIDTHS)}")
        now = timezone.now()
        default = report.find_bucket(now - WIDTHS[width] * (LIMITS[width][0] - 1), width)
        start = _parse_time(request, "start_time") or default
        end = _parse_time(request, "end_time") or max(now, start) + timedelta(seconds=1)
        if end <= start:  # before `start` is rounded down
            message = (
                f"end_time is {int(end.timestamp())}; it must be after start_time, "
                f"{int(start.timestamp())}."
            )
            raise APIError("invalid_value", message, "end_time")
        begin = report.find_bucket(start, width)
        return cls(
            width=width,
            begin=max(begin, report.find_bucket(_parse_page(request) or begin, width)),
            end=end,
            groups=_parse_groups(request),
            models=_parse_several(request, "models"),
            api_key_ids=_parse_several(request, "api_key_ids"),
            batch=_parse_batch(request),
            limit=_parse_limit(request, width),
        )

    def list_buckets(self) -> list[datetime]:
        """Return the starts of the buckets, plus the next start if more buckets follow this
        page."""
        width = WIDTHS[self.width]
        count = min(self.limit + 1, -((self.begin - self.end) // width))
        return [self.begin + i * width for i in range(count)]


class UsageView(AsyncAPIView):
    """Report the usage of the key or, for an admin key, of its organization."""

    scope = Scope.USAGE

    async def get(self, request: APIRequest) -> JSONResponse:
        query = UsageQuery.parse(request)
        buckets = query.list_buckets()
        page_buckets = buckets[: query.limit]
        until = min(query.begin + len(page_buckets) * WIDTHS[query.width], query.end)
        owner = request.auth
        hours = _select_hours(query, owner, until)
        names = await _load_names(owner)
        by_start: dict[datetime, list[UsageRow]] = {start: [] for start in page_buckets}
        async for values in report.group_rows(hours, UNITS[query.width], query.groups):
            row = report.make_row(values, query.groups)
            by_start[row.start].append(row)
        refused = await _load_refusals(query, owner, until, names)
        more = len(buckets) > len(page_buckets)
        return JSONResponse(
            {
                "object": "page",
                "data": [
                    _make_bucket(start, query, rows, names, refused[start])
                    for start, rows in by_start.items()
                ],
                "has_more": more,
                "next_page": f"page_{int(buckets[-1].timestamp())}" if more else None,
            }
        )


def _select_hours(query: UsageQuery, owner: Principal, until: datetime) -> QuerySet[UsageHour]:
    """Return the rows that the query selects and the caller may read."""
    hours = _select_keys(query, owner, UsageHour.objects.all())
    hours = hours.filter(query.batch, hour__gte=query.begin, hour__lt=until)
    return hours.filter(model__in=query.models) if query.models else hours


def _select_keys(query: UsageQuery, owner: Principal, rows: QuerySet[_M]) -> QuerySet[_M]:
    """Return the rows of the keys that the query selects and the caller may read."""
    rows = rows.filter(organization_id=owner.organization_id)
    if not owner.is_admin:
        rows = rows.filter(api_key_id=owner.key_id)
    if query.api_key_ids:
        keys = ApiKey.objects.with_secrets(map(parse_public_id, query.api_key_ids))
        rows = rows.filter(api_key__in=keys)
    return rows


async def _load_names(owner: Principal) -> dict[int, tuple[str, str]]:
    """Return the public id and name of each of the organization's keys."""
    keys = ApiKey.objects.filter(organization_id=owner.organization_id)
    rows = keys.values_list("id", "public_id", "name")
    return {pk: (f"sk-{public_id}", name) async for pk, public_id, name in rows}


async def _load_refusals(
    query: UsageQuery, owner: Principal, until: datetime, names: dict[int, tuple[str, str]]
) -> dict[datetime, list[dict[str, object]]]:
    """Return the refusals of the keys that the query selects, by bucket, key and code. A refused
    request may have no model and no batch, so `models`, `batch` and `group_by` do not apply."""
    rows = _select_keys(query, owner, Refusal.objects.all())
    rows = rows.filter(hour__gte=query.begin, hour__lt=until).order_by("at")
    counts: Counter[tuple[datetime, int, str]] = Counter()
    sums: dict[tuple[datetime, int, str], dict[str, object]] = {}
    async for row in rows:
        start = report.find_bucket(row.hour, query.width)
        cell = (start, row.api_key_id, row.code)
        counts[cell] += row.count
        key_id, key_name = names[row.api_key_id]
        sums[cell] = {
            "object": "refusals",
            "code": row.code,
            "count": counts[cell],
            "message": row.message,
            "last_at": int(row.at.timestamp()),
            "request_id": row.request_id,
            "api_key_id": key_id,
            "api_key_name": key_name,
        }
    by_start: defaultdict[datetime, list[dict[str, object]]] = defaultdict(list)
    for cell in sorted(sums):
        by_start[cell[0]].append(sums[cell])
    return by_start


def _make_bucket(
    start: datetime,
    query: UsageQuery,
    rows: Iterable[UsageRow],
    names: dict[int, tuple[str, str]],
    refused: list[dict[str, object]],
) -> dict[str, object]:
    end = start + WIDTHS[query.width]
    return {
        "object": "bucket",
        "start_time": int(start.timestamp()),
        "end_time": int(end.timestamp()),
        "results": [_make_result(row, names) for row in rows],
        "refusals": refused,
    }


def _make_result(row: UsageRow, names: dict[int, tuple[str, str]]) -> dict[str, object]:
    """Return OpenAI's fields and Quire's own. Fields that are not in `group_by` are null."""
    key_id, key_name = names.get(row.group.get("api_key_id", 0), (None, None))
    return {
        "object": "organization.usage.completions.result",
        **{each.public_name: row.sums[each.name] for each in USAGE_COUNTS},
        "cost": float(row.cost),
        "latency_ms": row.percentiles(LATENCY),
        "first_token_ms": row.percentiles(FIRST_TOKEN),
        "api_key_id": key_id,
        "api_key_name": key_name,
        "model": row.group.get("model"),
        "adapter": row.group.get("adapter"),
        "project_id": None,
        "user_id": None,
        "batch": None,
    }


def _parse_time(request: APIRequest, name: str) -> datetime | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,12}", text) or int(text) > _LATEST:
        raise invalid_parameter(name, text, "a Unix time in seconds")
    return datetime.fromtimestamp(int(text), UTC)


def _parse_page(request: APIRequest) -> datetime | None:
    text = request.query_params.get("page")
    if text is None:
        return None
    match = _PAGE.fullmatch(text)
    if match is None:
        raise invalid_parameter("page", text, "the next_page of an earlier page")
    return datetime.fromtimestamp(int(match[1]), UTC)


def _parse_limit(request: APIRequest, width: str) -> int:
    default, maximum = LIMITS[width]
    text = request.query_params.get("limit", str(default))
    if not re.fullmatch(r"[0-9]{1,6}", text) or not 1 <= int(text) <= maximum:
        raise invalid_parameter("limit", text, f"from 1 to {maximum} with bucket_width {width}")
    return int(text)


def _parse_batch(request: APIRequest) -> Q:
    """Return the condition of OpenAI's filter, true or false, or of the id of one batch."""
    text = request.query_params.get("batch")
    if text is None:
        return Q()
    if text in ("true", "false"):
        lines = Q(kind="batch")
        return lines if text == "true" else ~lines
    if not text.startswith(BATCH_ID):
        raise invalid_parameter("batch", text, "true, false, or the id of a batch")
    return Q(batch=text)


def _parse_groups(request: APIRequest) -> tuple[str, ...]:
    groups = _parse_several(request, "group_by")
    for name in groups:
        if name not in GROUPS:
            raise invalid_parameter("group_by", name, f"some of: {', '.join(GROUPS)}")
    parameters = {"group_by", "group_by[]"} & request.query_params.keys()
    return tuple(dict.fromkeys(groups)) if parameters else DEFAULT_GROUPS


def _parse_several(request: APIRequest, name: str) -> list[str]:
    """Return a parameter with several values: repeated, with or without [], or separated by
    commas."""
    values = [*request.query_params.getlist(name), *request.query_params.getlist(f"{name}[]")]
    names = [part for text in values for part in text.split(",") if part]
    if len(names) > _MAX_NAMES:
        message = f"{name} lists {len(names)} names; it may list at most {_MAX_NAMES}."
        raise APIError("invalid_value", message, name)
    return names
