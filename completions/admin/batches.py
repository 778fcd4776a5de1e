"""Batches."""

from django.contrib import admin

from completions.admin.base import ReadOnlyAdmin
from completions.models import Batch


@admin.register(Batch)
class BatchAdmin(ReadOnlyAdmin):
    list_display = [
        "id", "organization", "api_key", "model", "status", "total", "completed", "failed",
        "created_at", "ended_at",
    ]  # fmt: skip
    list_filter = ["status", "model", "organization"]
    date_hierarchy = "created_at"
    search_fields = ["id"]
    exclude = ["pace"]
