"""What is old goes; the sums stay."""

import io
from datetime import timedelta

from django.core.management import call_command
from django.utils import timezone
from pytest_django.fixtures import Settings

from completions.models import LoadSample, StoredPrompt, UsageHour, UsageRecord
from completions.upkeep import pruning
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
    pruned = pruning.prune(now)
    assert (pruned["usage records"], pruned["stored prompts"], pruned["load samples"]) == (1, 2, 1)
    assert set(UsageRecord.objects.values_list("job_id", flat=True)) == {"j1", "j6"}
    assert UsageHour.objects.count() == 3
    assert pruning.prune(now).total() == 0


def test_the_command_says_what_went(db: None) -> None:
    output = io.StringIO()
    call_command("prune", stdout=output)
    assert "usage records: 0" in output.getvalue()
