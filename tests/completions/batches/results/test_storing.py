"""A file and its row while two writers, or a writer and the pruning, meet."""

from datetime import timedelta
from typing import Any

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import FileSystemStorage
from django.db.models.signals import post_delete
from django.utils import timezone

from completions.batches import files, writing
from completions.batches.results.index import Index
from completions.models import Batch, BatchLine, File, FilePurpose
from tests.completions.console.batch_of_results import ended_batch

pytestmark = pytest.mark.django_db(transaction=True)

DAY = timedelta(days=1)
save = FileSystemStorage.save


@pytest.fixture
def batch(owner) -> Batch:
    """It has ended, and has its lines still: another writer reads them."""
    owner.key.organization = owner.organization
    batch = ended_batch(owner.key, 12)
    for number in range(1, 13):
        BatchLine.objects.create(batch=batch, number=number, custom_id=f"again-{number}", job=b"")
    return batch


def new_file(owner, file_id: str = "file-one") -> File:
    return File(
        id=file_id, organization_id=owner.organization.pk, api_key_id=owner.key.pk,
        filename="out.jsonl", purpose=FilePurpose.BATCH_OUTPUT,
    )  # fmt: skip


def text_of(file_id: str = "file-one") -> bytes:
    with File.objects.readable(timezone.now()).get(id=file_id).content.open("rb") as content:
        return content.read()


@pytest.fixture(params=["before", "after"])
def overtaken(request, owner, monkeypatch):
    """Another writer of the same file starts and ends while the first one saves its content."""

    def meanwhile(self: Any, name: str, content: Any, *rest: Any, **options: Any) -> str:
        monkeypatch.setattr(FileSystemStorage, "save", save)
        if request.param == "after":
            name = save(self, name, content, *rest, **options)
        files.store(new_file(owner), ContentFile(b"of the second"), DAY)
        return name if request.param == "after" else save(self, name, content, *rest, **options)

    monkeypatch.setattr(FileSystemStorage, "save", meanwhile)
    return meanwhile


def test_a_writer_that_was_overtaken_leaves_the_file_of_the_other(owner, folder, overtaken):
    with pytest.raises(files.FileLostError, match="file-one"):
        files.store(new_file(owner), ContentFile(b"of the first"), DAY)
    assert text_of() == b"of the second"
    assert len([path for path in folder.rglob("*") if path.is_file()]) == 1


def test_a_writer_that_fails_leaves_the_file_of_another(owner, folder, overtaken, monkeypatch):
    def fail(*args: Any, **options: Any) -> None:
        overtaken(*args, **options)
        raise OSError("the disk is gone")

    monkeypatch.setattr(FileSystemStorage, "save", fail)
    with pytest.raises(OSError, match="the disk is gone"):
        files.store(new_file(owner), ContentFile(b"of the first"), DAY)
    assert text_of() == b"of the second"


def test_a_writer_without_its_lease_stores_nothing(batch):
    """It lost the lease in its last lines, and the other writer has ended the batch."""
    before = [text_of(batch.output_file_id), text_of(batch.error_file_id)]
    leases = iter([True, False])
    assert not writing.write_files(batch, lambda: next(leases))
    assert [text_of(batch.output_file_id), text_of(batch.error_file_id)] == before
    assert batch.results.count() == 12


def test_a_writer_that_loses_its_lease_later_leaves_the_index(batch):
    assert not Index().store(batch, lambda: False)
    assert batch.results.count() == 12


def test_a_batch_whose_writer_was_overtaken_is_the_others(batch, monkeypatch):
    def lost(*_: Any) -> None:
        raise files.FileLostError("file-one")

    monkeypatch.setattr(files, "store", lost)
    assert not writing.write_files(batch, lambda: True)
    assert batch.results.count() == 12


def test_a_file_that_is_written_while_others_are_pruned_stays(owner, folder):
    """Both rows have expired when the pruning begins. Before it deletes the second, the writer of
    that file ends."""
    now = timezone.now()
    for file_id in ("file-one", "file-two"):
        files.store(new_file(owner, file_id), ContentFile(b"text"), DAY)
    File.objects.update(expires_at=now)

    def end_the_other(instance: File, **_: Any) -> None:
        File.objects.exclude(id=instance.id).update(expires_at=now + DAY)

    post_delete.connect(end_the_other, sender=File)
    try:
        assert files.prune(now) == 1
    finally:
        post_delete.disconnect(end_the_other, sender=File)
    (kept,) = File.objects.all()
    assert text_of(kept.id) == b"text"
