"""A job on its way into the queue."""

from completions.jobs.record import redis_name
from tests.completions.jobs.job_making import new_job


def test_a_job_is_serialised_once() -> None:
    job = new_job()
    first, again = job.record_fields(""), job.record_fields("web-1")
    for name, value in (("request", job.request_json), (redis_name("context"), job.context)):
        for written in (first, again):
            assert written[written.index(name) + 1] is value
