"""The sums of each hour, to be filtered and exported."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse

from completions import usage_report
from completions.admin.base import ReadOnlyAdmin
from completions.models import UsageHour


@admin.register(UsageHour)
class UsageHourAdmin(ReadOnlyAdmin):
    list_display = [
        "hour", "organization", "api_key", "model", "adapter", "requests", "failed",
        "prompt_tokens", "cached_tokens", "completion_tokens", "forced_tokens", "cost",
    ]  # fmt: skip
    list_filter = ["model", "organization"]
    date_hierarchy = "hour"
    actions = ["export_days", "export_hours"]

    @admin.action(description="Export as CSV by day", permissions=["view"])
    def export_days(self, request: HttpRequest, queryset: QuerySet[UsageHour]) -> HttpResponse:
        return _csv(queryset, "1d")

    @admin.action(description="Export as CSV by hour", permissions=["view"])
    def export_hours(self, request: HttpRequest, queryset: QuerySet[UsageHour]) -> HttpResponse:
        return _csv(queryset, "1h")


def _csv(hours: QuerySet[UsageHour], width: str) -> HttpResponse:
    """The chosen rows. `select across` makes them all that the filters leave."""
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response.headers["Content-Disposition"] = 'attachment; filename="usage.csv"'
    # An admin's query set joins the tables that the list shows.
    usage_report.write_csv(UsageHour.objects.filter(pk__in=hours.values("pk")), width, response)
    return response
