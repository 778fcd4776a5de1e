"""Files that clients uploaded and batches wrote."""

from typing import Any

from django.contrib import admin
from django.utils import timezone
from django.utils.safestring import SafeString

from completions.admin.base import ReadOnlyAdmin
from completions.admin.display import ago, code, size
from completions.models import File


@admin.register(File)
class FileAdmin(ReadOnlyAdmin):
    """The table of files. The content belongs to the client and is not shown."""

    list_display = ["name", "file", "owner", "purpose", "weighs", "created", "expires"]
    list_filter = ["purpose", "organization"]
    search_fields = ["id", "filename"]
    exclude = ["content"]
    sortable_by = ()
    show_full_result_count = True

    @admin.display(description="Name")
    def name(self, file: File) -> str:
        return file.filename

    @admin.display(description="Id")
    def file(self, file: File) -> SafeString:
        return code(file.id)

    @admin.display(description="Size")
    def weighs(self, file: File) -> str:
        return size(file.bytes)

    @admin.display(description="Created")
    def created(self, file: File) -> str:
        return ago(file.created_at, timezone.now())

    @admin.display(description="Expires")
    def expires(self, file: Any) -> str:
        return ago(file.expires_at, timezone.now()) if file.expires_at else "never"
