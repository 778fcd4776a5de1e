"""The admin pages that show no table, under `/admin/`."""

from django.contrib import admin
from django.urls import path

from completions.admin import keys
from completions.admin.batches import cancel as cancel_batch
from completions.admin.live import job, jobs, models, workers

app_name = "operations"
urlpatterns = [
    path("live/", admin.site.admin_view(jobs.open_jobs), name="live"),
    path("jobs/<str:job_id>/", admin.site.admin_view(job.job_page), name="job"),
    path("jobs/<str:job_id>/cancel/", admin.site.admin_view(jobs.cancel), name="cancel"),
    path("jobs/<str:job_id>/requeue/", admin.site.admin_view(jobs.requeue), name="requeue"),
    path(
        "batches/<str:batch_id>/cancel/", admin.site.admin_view(cancel_batch), name="cancel-batch"
    ),
    path("keys/<int:key_id>/rotate/", admin.site.admin_view(keys.rotate), name="rotate"),
    path("keys/<int:key_id>/revoke/", admin.site.admin_view(keys.revoke), name="revoke"),
    path("workers/", admin.site.admin_view(workers.workers), name="workers"),
    path("workers/<str:worker_id>/drain/", admin.site.admin_view(workers.drain), name="drain"),
    path("workers/<str:worker_id>/resume/", admin.site.admin_view(workers.resume), name="resume"),
    path("models/", admin.site.admin_view(models.models), name="models"),
]
