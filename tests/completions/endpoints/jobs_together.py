"""Stores four background jobs with a window in four threads, each with a connection of its own: one
fits into its window. Prints the codes of the refusals and the number of the rows. `run_apart`
in ../conftest.py runs it."""

from functools import partial

from asgiref.sync import async_to_sync
from django.utils import timezone

from completions.delivery.forecasts import Admission
from completions.exceptions import APIError
from completions.jobs import durable
from completions.models import ApiKey, Job, Organization
from tests.completions.endpoints.windows_together import MODEL, THREADS, run_before
from tests.completions.jobs.job_making import new_job
from tests.completions.together import run_together


def store_together() -> list[str]:
    organization = Organization.objects.create(name="one")
    key = ApiKey.objects.create(organization=organization, name="key")
    run_before(key, seconds=30)

    def create(number: int) -> str:
        job = new_job(
            f"cmpl-own-{number}", "background", model=MODEL, seconds=40.0,
            organization_id=organization.pk, api_key_id=key.pk,
        )  # fmt: skip
        admission = Admission.measure(job, refuses_late=True, now=timezone.now())
        try:
            async_to_sync(durable.store)(job, admission.make_promise)
        except APIError as error:
            return error.code
        return "stored"

    return run_together(*(partial(create, number) for number in range(THREADS)))


if __name__ == "__main__":
    print(*sorted(store_together()), Job.objects.count())
