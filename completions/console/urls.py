"""The console's pages and API calls, under `/admin/`."""

from typing import Any

from django.contrib import admin
from django.urls import path

from completions.console import results
from completions.console.acting import JudgeView, RunView, StopView
from completions.console.playground import playground
from completions.http.base import AsyncAPIView
from completions.responses.chat import ChatView

app_name = "console"


def _acting(view: type[AsyncAPIView], **options: Any) -> Any:
    """The view under Django's CSRF check, from which DRF exempts its views."""
    made = view.as_view(**options)
    made.csrf_exempt = False
    return made


_CALLS = "playground/v1"
urlpatterns = [
    *(
        path(f"batches/<str:batch_id>/results/{route}", admin.site.admin_view(view), name=name)
        for route, view, name in (
            ("", results.results, "results"),
            ("<int:number>/", results.line, "results-line"),
            ("download/", results.download, "results-download"),
            ("resubmit/", results.resubmit, "results-resubmit"),
        )
    ),
    path("playground/", admin.site.admin_view(playground), name="playground"),
    path(f"{_CALLS}/completions", _acting(RunView)),
    path(f"{_CALLS}/completions/<str:job_id>/cancel", _acting(StopView)),
    path(f"{_CALLS}/chat/completions", _acting(RunView, view_type=ChatView)),
    path(f"{_CALLS}/chat/completions/<str:job_id>/cancel", _acting(StopView, view_type=ChatView)),
    path(f"{_CALLS}/grammars/validate", _acting(JudgeView)),
]
