"""The console's pages and API calls, under `/admin/`."""

from typing import Any

from django.contrib import admin
from django.urls import path

from completions.console import presets, results
from completions.console.acting import RunView, StopView, ValidateConstraintView
from completions.console.new_batch import make_batch
from completions.console.playground import show_playground
from completions.http.base import AsyncAPIView
from completions.responses.chat import ChatResponseContext

app_name = "console"


def _make_view(view: type[AsyncAPIView], **options: object) -> Any:
    """Return the view under Django's CSRF check, from which DRF exempts its views."""
    callback = view.as_view(**options)
    callback.csrf_exempt = False
    return callback


_CALLS = "playground/v1"
urlpatterns = [
    *(
        path(f"batches/<str:batch_id>/results/{route}", admin.site.admin_view(view), name=name)
        for route, view, name in (
            ("", results.show_results, "results"),
            ("<int:number>/", results.show_line, "results-line"),
            ("download/", results.download, "results-download"),
            ("resubmit/", results.resubmit, "results-resubmit"),
        )
    ),
    path("batches/new/", admin.site.admin_view(make_batch), name="new-batch"),
    *(
        path(f"playground/{route}", admin.site.admin_view(view), name=name)
        for route, view, name in (
            ("", show_playground, "playground"),
            ("presets/", presets.save, "presets"),
            ("presets/<str:preset_id>/delete/", presets.delete, "delete-preset"),
        )
    ),
    path(f"{_CALLS}/completions", _make_view(RunView)),
    path(f"{_CALLS}/completions/<str:job_id>/cancel", _make_view(StopView)),
    path(f"{_CALLS}/chat/completions", _make_view(RunView, context_type=ChatResponseContext)),
    path(
        f"{_CALLS}/chat/completions/<str:job_id>/cancel",
        _make_view(StopView, context_type=ChatResponseContext),
    ),
    path(f"{_CALLS}/grammars/validate", _make_view(ValidateConstraintView)),
]
