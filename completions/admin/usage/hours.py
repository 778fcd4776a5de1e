"""The table of hourly sums, with filters and CSV export."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse

from completions.admin.base import ReadOnlyAdmin, make_column, owner
from completions.admin.display import NONE, format_exact, format_share, make_two_lines
from completions.admin.requests import ModelFilter, cost, tokens
from completions.models import UsageHour
from completions.usage import report


@admin.register(UsageHour)
class UsageHourAdmin(ReadOnlyAdmin):
    empty_text = "An hour has a row once a request has ended in it."
    list_display = [
        "hour",
        owner,
        make_column("Model", lambda hour: make_two_lines(hour.model, hour.adapter)),
        "requests",
        make_column("Failed", lambda hour: format_exact(hour.failed) if hour.failed else NONE),
        tokens,
        make_column("Cached", lambda hour: format_share(hour.cached_tokens, hour.prompt_tokens)),
        make_column(
            "Forced", lambda hour: format_share(hour.forced_tokens, hour.completion_tokens)
        ),
        cost,
    ]
    list_filter = [("hour", admin.DateFieldListFilter), ModelFilter, "organization"]
    list_per_page = 50
    sortable_by = ()
    show_full_result_count = True
    actions = ["export_days", "export_hours"]

    @admin.action(description="Export as CSV by day", permissions=["view"])
    def export_days(self, request: HttpRequest, queryset: QuerySet[UsageHour]) -> HttpResponse:
        return _write_csv(queryset, "day")

    @admin.action(description="Export as CSV by hour", permissions=["view"])
    def export_hours(self, request: HttpRequest, queryset: QuerySet[UsageHour]) -> HttpResponse:
        return _write_csv(queryset, "hour")


def _write_csv(hours: QuerySet[UsageHour], unit: str) -> HttpResponse:
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response.headers["Content-Disposition"] = 'attachment; filename="usage.csv"'
    # The admin's query set joins tables; a plain one groups faster.
    report.write_csv(UsageHour.objects.filter(pk__in=hours.values("pk")), unit, response)
    return response
