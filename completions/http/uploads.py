"""Where the body of an upload goes while it is parsed."""

from typing import Any

from django.core.files.uploadhandler import TemporaryFileUploadHandler

_SAFE = "file"


class UploadHandler(TemporaryFileUploadHandler):
    """Writer of a large file to the disk, as Django does, but without its extension: the client's
    may be longer than the system allows."""

    def new_file(self, field_name: str, file_name: str, *others: Any, **options: Any) -> None:
        super().new_file(field_name, _SAFE, *others, **options)
        self.file.name = file_name
