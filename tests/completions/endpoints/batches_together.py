"""Creates eight batches in eight threads, each with a connection of its own, of which three may
wait. Prints the codes of the refusals and the number of the rows. `run_apart` in ../conftest.py
runs it."""

from functools import partial

from django.conf import settings

from completions.endpoints import batches
from completions.exceptions import APIError
from completions.models import ApiKey, Batch, Organization
from tests.completions.together import run_together

THREADS = 8


def create_together() -> list[str]:
    organization = Organization.objects.create(name="one")
    key = ApiKey.objects.create(organization=organization, name="key")
    owner = organization.pk, key.pk

    def create(number: int) -> str:
        batch = Batch(
            endpoint="/v1/completions",
            completion_window="24h",
            output_seconds=1,
            input_file_id=f"file-{number}",
            job_prefix="cmpl-",
        )
        batch.organization_id, batch.api_key_id = owner
        batch.expires_at = batch.created_at + batch.window
        try:
            batches._store(batch, {})
        except APIError as error:
            return error.code
        return "created"

    return run_together(*(partial(create, number) for number in range(THREADS)))


if __name__ == "__main__":
    settings.MAX_VALIDATING_BATCHES = 3
    print(*sorted(create_together()), Batch.objects.count())
