"""GET /v1/usage: what was used, in buckets of hours or days as in OpenAI's usage API."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from rest_framework.response import Response

from completions.accounts.keys import Principal
from completions.errors import APIError
from completions.http.base import APIRequest, AsyncAPIView
from completions.models import ApiKey, Scope, UsageHour
from completions.usage import report
from completions.usage.report import WIDTHS, Row

GROUPS = ("model", "api_key_id", "adapter")
DEFAULT_GROUPS = ("model", "api_key_id")
LIMITS = {"1d": (7, 31), "1h": (24, 168)}
"""Buckets of a page by their width: by default, and at most."""
_PAGE = re.compile(r"page_(\d{1,11})")
_LATEST = 32_503_680_000
"""The year 3000: dates end with 9999, and a bucket's end must be one, too."""
_MOST_NAMES = 100
"""That one parameter may list."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The query. Buckets begin at `begin` and before `end`."""

    width: str
    begin: datetime
    end: datetime
    groups: Sequence[str]
    models: Sequence[str]
    api_key_ids: Sequence[str]
    limit: int

    @classmethod
    def of(cls, request: APIRequest) -> "Wanted":
        """Raises APIError."""
        width = request.query_params.get("bucket_width", "1d")
        if width not in WIDTHS:
            message = f"bucket_width must be one of {', '.join(WIDTHS)}."
            raise APIError("invalid_value", message, "bucket_width")
        now = timezone.now()
        begin = _time(request, "start_time") or now - WIDTHS[width] * (LIMITS[width][0] - 1)
        begin = report.bucket_of(begin, width)
        end = _time(request, "end_time") or now + timedelta(seconds=1)
        if end <= begin:
            raise APIError("invalid_value", "end_time must be after start_time.", "end_time")
        return cls(
            width=width,
            begin=max(begin, report.bucket_of(_page(request) or begin, width)),
            end=end,
            groups=_groups(request),
            models=_several(request, "models"),
            api_key_ids=_several(request, "api_key_ids"),
            limit=_limit(request, width),
        )

    def buckets(self) -> list[datetime]:
        """Their beginnings, and one more where the page does not hold all."""
        width = WIDTHS[self.width]
        count = min(self.limit + 1, -((self.begin - self.end) // width))
        return [self.begin + i * width for i in range(count)]


class UsageView(AsyncAPIView):
    """A key's own usage; that of the whole organization for its admin keys."""

    scope = Scope.USAGE

    async def get(self, request: APIRequest) -> Response:
        wanted = Wanted.of(request)
        buckets = wanted.buckets()
        shown = buckets[: wanted.limit]
        until = min(wanted.begin + len(shown) * WIDTHS[wanted.width], wanted.end)
        owner = request.auth
        hours = _hours(wanted, owner, until)
        names = await _names(owner)
        by_start: dict[datetime, list[Row]] = {start: [] for start in shown}
        async for values in report.grouped(hours, wanted.width, wanted.groups):
            row = report.row_of(values, wanted.groups)
            by_start[row.start].append(row)
        more = len(buckets) > len(shown)
        return Response(
            {
                "object": "page",
                "data": [_bucket(start, wanted, rows, names) for start, rows in by_start.items()],
                "has_more": more,
                "next_page": f"page_{int(buckets[-1].timestamp())}" if more else None,
            }
        )


def _hours(wanted: Wanted, owner: Principal, until: datetime) -> QuerySet[UsageHour]:
    """The rows that the caller may see and asked for."""
    hours = UsageHour.objects.filter(
        organization_id=owner.organization_id, hour__gte=wanted.begin, hour__lt=until
    )
    if not owner.is_admin:
        hours = hours.filter(api_key_id=owner.key_id)
    if wanted.models:
        hours = hours.filter(model__in=wanted.models)
    if wanted.api_key_ids:
        ids = [name.removeprefix("sk-") for name in wanted.api_key_ids]
        hours = hours.filter(api_key__public_id__in=ids)
    return hours


async def _names(owner: Principal) -> dict[int, tuple[str, str]]:
    """Public id and name of the organization's keys."""
    keys = ApiKey.objects.filter(organization_id=owner.organization_id)
    found = keys.values_list("id", "public_id", "name")
    return {pk: (f"sk-{public_id}", name) async for pk, public_id, name in found}


def _bucket(
    start: datetime, wanted: Wanted, rows: Iterable[Row], names: dict[int, tuple[str, str]]
) -> dict[str, Any]:
    end = start + WIDTHS[wanted.width]
    return {
        "object": "bucket",
        "start_time": int(start.timestamp()),
        "end_time": int(end.timestamp()),
        "results": [_result(row, names) for row in rows],
    }


def _result(row: Row, names: dict[int, tuple[str, str]]) -> dict[str, Any]:
    """OpenAI's fields, and ours. What is not grouped by is null."""
    key_id, key_name = names.get(row.group.get("api_key_id", 0), (None, None))
    sums = row.sums
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": sums["prompt_tokens"],
        "input_cached_tokens": sums["cached_tokens"],
        "output_tokens": sums["completion_tokens"],
        "forced_tokens": sums["forced_tokens"],
        "num_model_requests": sums["requests"],
        "num_failed_requests": sums["failed"],
        "num_cancelled_requests": sums["cancelled"],
        "cost": float(row.cost),
        "latency_ms": row.latency(),
        "first_token_ms": row.first_token(),
        "api_key_id": key_id,
        "api_key_name": key_name,
        "model": row.group.get("model"),
        "adapter": row.group.get("adapter"),
        "project_id": None,
        "user_id": None,
        "batch": None,
    }


def _time(request: APIRequest, name: str) -> datetime | None:
    given = request.query_params.get(name)
    if given is None:
        return None
    if not re.fullmatch(r"\d{1,12}", given) or int(given) > _LATEST:
        raise APIError("invalid_value", f"{name} must be a Unix time in seconds.", name)
    return datetime.fromtimestamp(int(given), UTC)


def _page(request: APIRequest) -> datetime | None:
    given = request.query_params.get("page")
    if given is None:
        return None
    match = _PAGE.fullmatch(given)
    if match is None:
        raise APIError("invalid_value", "page must be a next_page of this list.", "page")
    return datetime.fromtimestamp(int(match[1]), UTC)


def _limit(request: APIRequest, width: str) -> int:
    default, most = LIMITS[width]
    given = request.query_params.get("limit", str(default))
    if not re.fullmatch(r"\d{1,6}", given) or not 1 <= int(given) <= most:
        message = f"limit must be from 1 to {most} with bucket_width {width}."
        raise APIError("invalid_value", message, "limit")
    return int(given)


def _groups(request: APIRequest) -> tuple[str, ...]:
    given = _several(request, "group_by")
    for name in given:
        if name not in GROUPS:
            message = f"group_by must be some of {', '.join(GROUPS)}."
            raise APIError("invalid_value", message, "group_by")
    asked = {"group_by", "group_by[]"} & request.query_params.keys()
    return tuple(dict.fromkeys(given)) if asked else DEFAULT_GROUPS


def _several(request: APIRequest, name: str) -> list[str]:
    """A parameter given more than once, with or without [], or with commas."""
    given = [*request.query_params.getlist(name), *request.query_params.getlist(f"{name}[]")]
    names = [part for text in given for part in text.split(",") if part]
    if len(names) > _MOST_NAMES:
        message = f"{name} may list {_MOST_NAMES} names at most."
        raise APIError("invalid_value", message, name)
    return names
