"""The page of all usage, and any view of usage as CSV."""

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from completions.admin.base import render_page, require_view
from completions.admin.usage.panel import make_panel, select_hours
from completions.admin.usage.view_state import BadViewError, read_view, refuse_unknown
from completions.usage import report


@require_view("view_usagehour", for_members=True)
def explore(request: HttpRequest) -> HttpResponse:
    try:
        refuse_unknown(request.GET)
        context = make_panel(request)
    except BadViewError as error:
        context = {"usage": {"error": str(error), "path": request.path}}
    status = 400 if "error" in context["usage"] else 200
    return render_page(request, "quire/usage.html", "Usage", context, status=status)


@require_view("view_usagehour", for_members=True)
def download(request: HttpRequest) -> HttpResponse:
    """Send a line per bucket and group of the view, those without a colour in the chart too."""
    try:
        refuse_unknown(request.GET)
        view = read_view(request.GET, timezone.now())
    except BadViewError as error:
        return HttpResponse(f"{error}\n", content_type="text/plain; charset=utf-8", status=400)
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    name = f"usage-{view.span.start:%Y%m%d}-{view.span.last_day:%Y%m%d}.csv"
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    hours = select_hours(view, request.user)
    hours = hours.filter(hour__gte=view.span.start, hour__lt=view.span.end)
    group = view.group.column
    groups = ["organization_id", group] if group == "api_key_id" else [group]
    report.write_csv(hours, view.width.name, response, groups)
    return response
