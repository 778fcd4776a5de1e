"""Jobs that SQL keeps."""

from django.contrib import admin

from completions.admin.base import ReadOnlyAdmin
from completions.models import Job


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    """Prompts are the client's own: neither request nor view is shown."""

    list_display = ["id", "organization", "api_key", "model", "status", "created_at", "finished_at"]
    list_filter = ["status", "model", "organization"]
    date_hierarchy = "created_at"
    search_fields = ["id"]
    exclude = ["request", "view", "events"]
