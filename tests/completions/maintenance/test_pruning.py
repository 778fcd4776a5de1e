"""What is old goes; the sums stay."""

import io
import os
from datetime import timedelta
from pathlib import Path

from django.core.files.uploadedfile import TemporaryUploadedFile
from django.core.management import call_command
from django.utils import timezone
from pytest_django.fixtures import Settings

from completions.maintenance import pruning
from completions.models import (
    LoadSample,
    Refusal,
    StoredPrompt,
    UsageHour,
    UsageRecord,
    WrongKey,
)
from tests.completions.conftest import Tenant


def test_records_go_and_hours_stay(owner: Tenant, settings: Settings) -> None:
    settings.USAGE_RECORD_DAYS, settings.STORED_PROMPT_DAYS = 10, 5
    now = timezone.now()
    both = {"organization": owner.organization, "api_key": owner.key, "model": "m"}
    for days in (1, 6, 11):
        at = now - timedelta(days=days)
        UsageRecord.objects.create(
            job_id=f"j{days}", kind="sync", status="completed", created_at=at, finished_at=at,
            **both,
        )  # fmt: skip
        StoredPrompt.objects.create(
            job_id=f"j{days}", organization=owner.organization, request=b"", created_at=at
        )
        UsageHour.objects.create(hour=at.replace(minute=0, second=0, microsecond=0), **both)
    LoadSample.objects.create(at=now - timedelta(days=40), model="m")
    for days in (9, 11, 40):
        last = {"at": now, "hour": now - timedelta(days=days)}
        Refusal.objects.create(organization=owner.organization, api_key=owner.key, code="x", **last)
        WrongKey.objects.create(masked="***", address="", code="x", **last)
    pruned = pruning.prune(now)
    assert (pruned["refusals"], pruned["wrong keys"]) == (2, 1)
    assert (pruned["usage records"], pruned["stored prompts"], pruned["load samples"]) == (1, 2, 1)
    assert set(UsageRecord.objects.values_list("job_id", flat=True)) == {"j1", "j6"}
    assert UsageHour.objects.count() == 3
    assert pruning.prune(now).total() == 0


def test_what_a_killed_web_process_left_of_an_upload_goes(
    db: None, settings: Settings, tmp_path: Path
) -> None:
    settings.FILE_UPLOAD_TEMP_DIR = tmp_path
    running, left = (TemporaryUploadedFile("file", "text/plain", 0, None) for _ in range(2))
    days_ago = (timezone.now() - timedelta(days=2)).timestamp()
    os.utime(left.temporary_file_path(), (days_ago, days_ago))
    assert pruning.prune(timezone.now())["left bodies of uploads"] == 1
    assert [str(path) for path in tmp_path.iterdir()] == [running.temporary_file_path()]
    running.close()
    left.close()


def test_the_command_says_what_went(db: None) -> None:
    output = io.StringIO()
    call_command("prune", stdout=output)
    assert "usage records: 0" in output.getvalue()
