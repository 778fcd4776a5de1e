"""Files: one row each; the content is in Django's default storage."""

from datetime import datetime
from functools import partial

from django.core.files.storage import default_storage
from django.db import models, transaction
from django.db.models import Q
from django.db.models.signals import post_delete
from django.dispatch import receiver
from django.utils import timezone

from completions.models.organizations import ApiKey, Organization
from completions.models.timed_ids import new_id

FILE_ID = "file-"


class FilePurpose(models.TextChoices):
    """Clients upload `batch` files; the service writes `batch_output` files."""

    BATCH = "batch"
    BATCH_OUTPUT = "batch_output"


def new_file_id() -> str:
    return new_id(FILE_ID)


def path_in_storage(file: "File", _filename: str = "") -> str:
    """Return the path of a file. It never contains the file name that the client chose."""
    return f"{file.organization_id}/{file.id}"


class FileQuerySet(models.QuerySet["File"]):
    def readable(self, now: datetime) -> "FileQuerySet":
        """Select files that are written and have not expired."""
        unexpired = Q(expires_at=None) | Q(expires_at__gt=now)
        return self.filter(unexpired).exclude(content="")


class File(models.Model):
    """A file that a client uploaded or a batch wrote. While its content is being written, the
    column has no name, and the row expires soon."""

    id = models.CharField(primary_key=True, max_length=64, default=new_file_id)
    organization = models.ForeignKey(Organization, models.CASCADE, related_name="files")
    api_key = models.ForeignKey(ApiKey, models.CASCADE, related_name="files")
    filename = models.CharField(max_length=255)
    purpose = models.CharField(max_length=20, choices=FilePurpose.choices)
    bytes = models.PositiveBigIntegerField()
    content = models.FileField(upload_to=path_in_storage, max_length=200)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(null=True, blank=True, db_index=True)

    objects = FileQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at"]
        indexes = [models.Index(fields=["organization", "created_at", "id"])]

    def __str__(self) -> str:
        return self.id


@receiver(post_delete, sender=File)
def _delete_content(sender: type[File], instance: File, **_signal: object) -> None:
    """Delete the content with the row, whether by request, by expiry or with the organization. A
    file that was never written to its end has no name yet."""
    name = instance.content.name or path_in_storage(instance)
    transaction.on_commit(partial(default_storage.delete, name))
