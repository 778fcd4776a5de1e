"""Creates four batches in four threads, each with a connection of its own, of which one fits into
its window. Prints the codes of the refusals. `run_apart` in ../conftest.py runs it."""

from datetime import timedelta
from functools import partial

from django.utils import timezone

from completions.endpoints import batches
from completions.exceptions import APIError
from completions.models import (
    ApiKey,
    Batch,
    BatchStatus,
    JobStatus,
    OnLate,
    Organization,
    UsageRecord,
)
from tests.completions.together import run_together

THREADS = 4
MODEL = "m"


def make_batch(key: ApiKey, number: int, **fields: object) -> Batch:
    batch = Batch(
        organization=key.organization, api_key=key, endpoint="/v1/completions", output_seconds=1,
        completion_window="20m", input_file_id=f"file-{number}", job_prefix="cmpl-", **fields,
    )  # fmt: skip
    batch.expires_at = batch.created_at + batch.window
    return batch


def run_before(key: ApiKey, seconds: int = 1) -> None:
    """Record that the model computes 100 tokens a second, that a request takes `seconds`, and that
    a file has a token for each byte."""
    now = timezone.now()
    part = {"plan": {"prompt_tokens": 0}, "bytes": 1000, "most": 1000, "lines": 10}
    make_batch(
        key, 0, model=MODEL, status=BatchStatus.COMPLETED, by_model={MODEL: part},
        total=10, completed=10, completion_tokens=1000,
    ).save()  # fmt: skip
    UsageRecord.objects.bulk_create(
        UsageRecord(
            job_id=f"cmpl-{n}", organization=key.organization, api_key=key, model=MODEL,
            kind="batch", status=JobStatus.COMPLETED, run_ms=1000 * seconds, created_at=now,
            completion_tokens=100 * seconds, finished_at=now + timedelta(seconds=n * seconds),
        )
        for n in range(10)
    )  # fmt: skip


def create_together() -> list[str]:
    organization = Organization.objects.create(name="one")
    key = ApiKey.objects.create(organization=organization, name="key")
    run_before(key)

    def create(number: int) -> str:
        batch = make_batch(key, number, on_late=OnLate.REFUSE)
        try:
            batches._store(batch, {MODEL: 45_000})  # 450 s, or 900 behind another one
        except APIError as error:
            return error.code
        return "created"

    return run_together(*(partial(create, number) for number in range(1, THREADS + 1)))


if __name__ == "__main__":
    print(*sorted(create_together()))
