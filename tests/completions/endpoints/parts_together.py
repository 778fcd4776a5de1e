"""Cancels an upload in one thread while another has checked that it may add a part. Prints what is
left: the number of parts, and of files. `run_apart` in ../conftest.py runs it."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.core.files.base import ContentFile
from django.db import connections

from completions.batches import uploads
from completions.models import ApiKey, Organization, Upload, UploadPart


def cancel_while_a_part_is_added() -> None:
    organization = Organization.objects.create(name="one")
    key = ApiKey.objects.create(organization=organization, name="key")
    upload = Upload(
        organization=organization, api_key=key, filename="a", bytes=9, file_seconds=3600
    )
    uploads.begin(upload)
    checked, cancelled, require_room = threading.Event(), threading.Event(), uploads._require_room

    def slow(*args: Any) -> None:
        require_room(*args)
        checked.set()
        cancelled.wait(1.0)  # unless that waits for this

    uploads._require_room = slow

    def add() -> None:
        try:
            with suppress(uploads.NotPendingError):
                uploads.add(upload, ContentFile(b"x"))
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        adding = pool.submit(add)
        checked.wait(60.0)
        uploads.cancel(upload)
        cancelled.set()
        adding.result()


if __name__ == "__main__":
    cancel_while_a_part_is_added()
    stored = settings.QUIRE_HOME / "files"
    print(UploadPart.objects.count(), sum(path.is_file() for path in stored.rglob("*")))
