"""Refused requests: their tables, and the lists on the pages of keys and organizations."""

from datetime import datetime
from urllib.parse import urlencode

from django.contrib import admin
from django.db.models import QuerySet
from django.urls import reverse
from django.utils import timezone

from completions.accounts.keys import mask_public_id
from completions.admin.base import ReadOnlyAdmin, make_column, owner
from completions.admin.display import format_ago, format_exact
from completions.models import ApiKey, Refusal, WrongKey
from completions.usage.refusals import count_wrong_keys, rank_codes

_HOUR = ("hour", admin.DateFieldListFilter)
_last = make_column("Last", lambda row: format_ago(row.at, timezone.now()))


@admin.register(Refusal)
class RefusalAdmin(ReadOnlyAdmin):
    empty_text = "A request of a known key that is refused is counted here within seconds."
    list_display = [
        "hour",
        "code",
        owner,
        make_column("Requests", lambda row: format_exact(row.count), "count"),
        _last,
        "message",
        "request_id",
    ]
    list_filter = [_HOUR, "code", "organization"]
    linked_lookups = ("api_key",)
    search_fields = ["request_id", "code"]
    search_help_text = "An error code, or an x-request-id."
    list_per_page = 50
    show_full_result_count = True


@admin.register(WrongKey)
class WrongKeyAdmin(ReadOnlyAdmin):
    empty_text = "A request with an unknown, revoked or expired secret is counted here."
    list_display = [
        "hour",
        "masked",
        "code",
        "address",
        make_column("Requests", lambda row: format_exact(row.count), "count"),
        _last,
    ]
    list_filter = [_HOUR, "code"]
    list_select_related = []
    search_fields = ["masked", "address"]
    search_help_text = "The beginning of a secret, or an address."
    list_per_page = 50
    show_full_result_count = True


def list_refusals(
    rows: QuerySet[Refusal], now: datetime, **filters: object
) -> list[dict[str, object]]:
    """Return the most frequent refusals of these rows, as `quire/refusals.html` shows them. Links
    lead to the table with the same filters."""
    table = reverse("admin:completions_refusal_changelist")
    return [
        {
            "code": each.code,
            "count": format_exact(each.count),
            "when": format_ago(each.latest.at, now),
            "message": each.latest.message,
            "key": each.latest.api_key.name,
            "link": f"{table}?{urlencode({'code': each.code, **filters})}",
        }
        for each in rank_codes(rows)
    ]


def list_wrong_keys(key: ApiKey, since: datetime, now: datetime) -> list[dict[str, object]]:
    """Return the uses of a key's secrets after these were replaced or revoked, or expired."""
    ids = [key.public_id, key.previous_public_id]
    rows = count_wrong_keys([mask_public_id(each) for each in ids if each], since)
    return [{**row, "when": format_ago(row["newest"], now)} for row in rows]
