"""The table of hourly usage, with filters and CSV export."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse

from completions.admin.base import ReadOnlyAdmin, column, owner
from completions.admin.display import NONE, exact, share, two
from completions.admin.requests import ModelFilter, cost, tokens
from completions.models import UsageHour
from completions.usage import report


@admin.register(UsageHour)
class UsageHourAdmin(ReadOnlyAdmin):
    list_display = [
        "hour",
        owner,
        column("Model", lambda hour: two(hour.model, hour.adapter)),
        "requests",
        column("Failed", lambda hour: exact(hour.failed) if hour.failed else NONE),
        tokens,
        column("Cached", lambda hour: share(hour.cached_tokens, hour.prompt_tokens)),
        column("Forced", lambda hour: share(hour.forced_tokens, hour.completion_tokens)),
        cost,
    ]
    list_filter = [("hour", admin.DateFieldListFilter), ModelFilter, "organization"]
    list_per_page = 50
    sortable_by = ()
    show_full_result_count = True
    actions = ["export_days", "export_hours"]

    @admin.action(description="Export as CSV by day", permissions=["view"])
    def export_days(self, request: HttpRequest, queryset: QuerySet[UsageHour]) -> HttpResponse:
        return _csv(queryset, "1d")

    @admin.action(description="Export as CSV by hour", permissions=["view"])
    def export_hours(self, request: HttpRequest, queryset: QuerySet[UsageHour]) -> HttpResponse:
        return _csv(queryset, "1h")


def _csv(hours: QuerySet[UsageHour], width: str) -> HttpResponse:
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response.headers["Content-Disposition"] = 'attachment; filename="usage.csv"'
    # The admin's query set joins tables; a plain one groups faster.
    report.write_csv(UsageHour.objects.filter(pk__in=hours.values("pk")), width, response)
    return response
