"""Uploads: files that come in parts, so that a broken connection costs one part."""

import uuid
from functools import partial

from django.core.files.storage import default_storage
from django.db import models, transaction
from django.db.models.signals import post_delete
from django.dispatch import receiver
from django.utils import timezone

from completions.models.files import File
from completions.models.organizations import ApiKey, Organization


class UploadStatus(models.TextChoices):
    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


def new_upload_id() -> str:
    return f"upload_{uuid.uuid4().hex}"


def new_part_id() -> str:
    return f"part_{uuid.uuid4().hex}"


class Upload(models.Model):
    """A file that its client sends in parts."""

    id = models.CharField(primary_key=True, max_length=64, default=new_upload_id)
    organization = models.ForeignKey(Organization, models.CASCADE, related_name="uploads")
    api_key = models.ForeignKey(ApiKey, models.CASCADE, related_name="uploads")
    filename = models.CharField(max_length=255)
    bytes = models.PositiveBigIntegerField(help_text="Size of the whole file.")
    file_seconds = models.PositiveIntegerField(help_text="How long the file is kept.")
    status = models.CharField(
        max_length=10, choices=UploadStatus.choices, default=UploadStatus.PENDING
    )
    file = models.ForeignKey(File, models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return self.id


def path_of_part(part: "UploadPart", _filename: str = "") -> str:
    return f"{part.upload.organization_id}/{part.id}"


class UploadPart(models.Model):
    """A piece of an upload. Its place in the file is known once the upload completes."""

    id = models.CharField(primary_key=True, max_length=64, default=new_part_id)
    upload = models.ForeignKey(Upload, models.CASCADE, related_name="parts")
    bytes = models.PositiveBigIntegerField()
    content = models.FileField(upload_to=path_of_part, max_length=200)
    created_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return self.id


@receiver(post_delete, sender=UploadPart)
def _delete_content(sender: type[UploadPart], instance: UploadPart, **_signal: object) -> None:
    """Delete the content with the row, whether the upload completes, expires or is cancelled."""
    transaction.on_commit(partial(default_storage.delete, str(instance.content.name)))
