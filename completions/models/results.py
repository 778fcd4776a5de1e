"""Locates the results of ended batches in their files."""

from django.db import models
from django.db.models.signals import post_delete
from django.dispatch import receiver

from completions.models.batches import Batch
from completions.models.files import File, FilePurpose


class BatchResult(models.Model):
    """A line of an ended batch: how it ended, and where its output and input lie. The row is
    deleted with the file of its output."""

    batch = models.ForeignKey(Batch, models.CASCADE, related_name="results")
    number = models.PositiveIntegerField(help_text="The line number in the input file, from 1.")
    completed = models.BooleanField(help_text="Whether it is in the output file, not the errors.")
    reason = models.CharField(max_length=64, help_text="The finish reason or the error code.")
    place = models.PositiveBigIntegerField(help_text="Its first byte in the file.")
    size = models.PositiveIntegerField(help_text="Its bytes.")
    sent_place = models.PositiveBigIntegerField(
        null=True, help_text="The first byte of its request in the input file, while that existed."
    )
    sent_size = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["batch", "number"], name="one_result_per_line"),
        ]
        indexes = [models.Index(fields=["batch", "completed", "reason", "number"])]

    def __str__(self) -> str:
        return f"{self.batch_id}:{self.number}"


@receiver(post_delete, sender=File)
def _delete_results(sender: type[File], instance: File, **_signal: object) -> None:
    if instance.purpose == FilePurpose.BATCH_OUTPUT:
        batch_id = Batch.parse_file_id(instance.id)
        completed = instance.id == Batch(id=batch_id).output_file_id
        BatchResult.objects.filter(batch_id=batch_id, completed=completed).delete()
