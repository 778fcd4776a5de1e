"""The usage ledger: a row per ended request."""

from django.contrib import admin

from completions.admin.base import ReadOnlyAdmin
from completions.models import UsageRecord


@admin.register(UsageRecord)
class UsageRecordAdmin(ReadOnlyAdmin):
    list_display = [
        "job_id", "organization", "api_key", "model", "kind", "status", "prompt_tokens",
        "completion_tokens", "queued_ms", "run_ms", "finished_at",
    ]  # fmt: skip
    list_filter = ["status", "kind", "model", "organization"]
    date_hierarchy = "finished_at"
    search_fields = ["job_id"]
