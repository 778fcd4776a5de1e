"""The admin pages under `/admin/` that do not show a table. `search/` replaces unfold's
page, and the first the index."""

from django.contrib import admin
from django.urls import path

from completions.admin import batches, job, keys, navigation
from completions.admin.live import jobs, models, workers
from completions.admin.usage import pages

_PAGES = (
    ("", navigation.start, "start"),
    ("search/", navigation.search, "search"),
    ("live/", jobs.list_open_jobs, "live"),
    ("jobs/<str:job_id>/", job.show_job, "job"),
    ("jobs/<str:job_id>/cancel/", jobs.cancel, "cancel"),
    ("jobs/<str:job_id>/requeue/", jobs.requeue, "requeue"),
    ("batches/<str:batch_id>/start/", batches.start, "start-batch"),
    ("batches/<str:batch_id>/cancel/", batches.cancel, "cancel-batch"),
    ("keys/<int:key_id>/rotate/", keys.rotate, "rotate"),
    ("keys/<int:key_id>/revoke/", keys.revoke, "revoke"),
    ("workers/", workers.list_workers, "workers"),
    ("workers/<str:worker_id>/drain/", workers.drain, "drain"),
    ("workers/<str:worker_id>/resume/", workers.resume, "resume"),
    ("models/", models.list_models, "models"),
    ("usage/", pages.explore, "usage"),
    ("usage.csv", pages.download, "usage-csv"),
)
app_name = "operations"
urlpatterns = [path(route, admin.site.admin_view(view), name=name) for route, view, name in _PAGES]
