"""An engine worker without an engine: claims jobs from the private Valkey and ends them at will."""

from completions.contract.job_request import decode_job_request
from completions.contract.usage import Usage
from completions.jobs.events import ChoiceEvent, JobError
from completions.jobs.execute import Claim, Ending, Execution, StepEvent
from completions.jobs.store import JobStore


class FakeWorker:
    """Serves one model, and answers every prompt with the same tokens."""

    def __init__(self, client, prefix, name="fake", model="tiny"):
        self.execution = Execution(JobStore(client, prefix), name)
        self.execution.beat(model, {})

    def claim(self, job_id):
        (claim,) = self.execution.claim([job_id])
        return claim if isinstance(claim, Claim) else None

    def run(self, job_id, state="completed", error=None, tokens=(65, 66)):
        """The whole of a job; False when it was not to be had."""
        claim = self.claim(job_id)
        if claim is None:
            return False
        self.end(claim, state, error, tokens)
        return True

    def end(self, claim, state="completed", error=None, tokens=(65, 66)):
        request = decode_job_request(claim.request)
        prompts = len(request.prompts)
        reason = None if error else "length"
        choices = [ChoiceEvent(i, list(tokens), "AB", reason, None) for i in range(prompts)]
        step = StepEvent(claim.job_id, claim.attempt, 1, choices)
        used = Usage(sum(map(len, request.prompts)), prompts * len(tokens), 1)
        ending = Ending(
            claim.job_id, claim.attempt, 1 + prompts, state,
            JobError(error, "because") if error else None, used,
        )  # fmt: skip
        self.execution.publish([step], [ending])
