"""Jobs, steps and endings as the tests of this folder write them, and what is in Redis then."""

from completions.contract.job_request import JobRequest
from completions.contract.sampling import SamplingParams
from completions.contract.usage import Usage
from completions.jobs import events
from completions.jobs.events import ChoiceEvent
from completions.jobs.execute import Ending, StepEvent
from completions.jobs.limits import Limits
from completions.jobs.new_job import NewJob

PREFIX = "t:"
REQUEST = JobRequest(((1, 2),))


def new_job(job_id="cmpl-1", kind="background", **changes) -> NewJob:
    fields = {
        "id": job_id,
        "kind": kind,
        "model": "m",
        "organization_id": 7,
        "api_key_id": 8,
        "request": REQUEST,
        "context": b'{"n":1}',
        "seconds": 60,
        "ttl": 100,
    }
    return NewJob(**{**fields, **changes})


def limited_job(job_id: str, limits: Limits, kind="sync", **changes) -> NewJob:
    """It can use 2 + 8 tokens."""
    request = JobRequest(REQUEST.prompts, SamplingParams(n=2, max_tokens=4))
    return new_job(
        job_id, kind, **{"request": request, "context": b'{"n":2}', "limits": limits, **changes}
    )


def die(redis_client, execution):
    redis_client.delete(f"{PREFIX}worker:{execution.worker_id}")


def stream(redis_client, job_id="cmpl-1"):
    return [events.decode(e[b"d"]) for _, e in redis_client.xrange(f"{PREFIX}ev:{job_id}")]


def step(claim, choices, number=None) -> StepEvent:
    gains = [ChoiceEvent(*choice) for choice in choices]
    return StepEvent(claim.job_id, claim.attempt, number or claim.sequence_number, gains)


def ending(claim, number, state="completed", error=None) -> Ending:
    return Ending(claim.job_id, claim.attempt, number, state, error, Usage(2, 1))
