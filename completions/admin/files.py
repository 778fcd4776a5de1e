"""What clients uploaded and batches wrote."""

from django.contrib import admin

from completions.admin.base import ReadOnlyAdmin
from completions.models import File


@admin.register(File)
class FileAdmin(ReadOnlyAdmin):
    """The content is the client's own: it is not shown."""

    list_display = [
        "id", "filename", "organization", "api_key", "purpose", "bytes", "created_at", "expires_at",
    ]  # fmt: skip
    list_filter = ["purpose", "organization"]
    date_hierarchy = "created_at"
    search_fields = ["id", "filename"]
    exclude = ["content"]
