"""The table of hourly usage, with filters and CSV export."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from completions.admin.base import ReadOnlyAdmin
from completions.admin.display import NONE, compact, exact, money, share, two
from completions.admin.requests import ModelFilter
from completions.models import UsageHour
from completions.usage import report


@admin.register(UsageHour)
class UsageHourAdmin(ReadOnlyAdmin):
    list_display = [
        "hour", "owner", "what", "requests", "failures", "tokens", "cached", "forced", "spent",
    ]  # fmt: skip
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

    @admin.display(description="Model")
    def what(self, hour: UsageHour) -> SafeString:
        return two(hour.model, hour.adapter)

    @admin.display(description="Failed")
    def failures(self, hour: UsageHour) -> str:
        return exact(hour.failed) if hour.failed else NONE

    @admin.display(description="Tokens in / out")
    def tokens(self, hour: UsageHour) -> str:
        return f"{compact(hour.prompt_tokens)} / {compact(hour.completion_tokens)}"

    @admin.display(description="Cached")
    def cached(self, hour: UsageHour) -> str:
        return share(hour.cached_tokens, hour.prompt_tokens)

    @admin.display(description="Forced")
    def forced(self, hour: UsageHour) -> str:
        return share(hour.forced_tokens, hour.completion_tokens)

    @admin.display(description="Cost")
    def spent(self, hour: UsageHour) -> str:
        return money(hour.cost_nanos)


def _csv(hours: QuerySet[UsageHour], width: str) -> HttpResponse:
    """Export the selected rows as CSV."""
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response.headers["Content-Disposition"] = 'attachment; filename="usage.csv"'
    # The admin's query set joins tables; a plain one groups faster.
    report.write_csv(UsageHour.objects.filter(pk__in=hours.values("pk")), width, response)
    return response
