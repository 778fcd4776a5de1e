"""A relay on a bench: an engine that does what the test asks, and what Celery would see."""

import threading
import time

from completions.contract.sampling import SamplingParams
from completions.contract.usage import Usage
from completions.jobs import events
from completions.jobs.connection import connect
from completions.jobs.execute import Execution
from completions.jobs.store import JobStore
from tests.workers.engine.stats_making import engine_stats
from workers.engine.core.output import ChoiceDelta, RequestOutput
from workers.relay import Relay

PREFIX = "r:"
SAMPLING = SamplingParams(
    max_tokens=4, temperature=0.5, seed=3, stop=("x",), stop_token_ids=(9,), logit_bias={5: 1.5}
)


class ScriptedEngine:
    """Emits the outputs that the test asks for, from the test's thread."""

    def __init__(self):
        self.requests = {}
        self.aborted = []
        self.used = None
        """What an aborted request had used."""
        self.submitted = threading.Event()
        self.refuse = None
        self.refused = 0

    def start(self, on_outputs, on_fatal):
        self.on_outputs, self.on_fatal = on_outputs, on_fatal

    def submit(self, request):
        if self.refuse:
            self.refused += 1
            raise self.refuse
        self.requests[request.request_id] = request
        self.submitted.set()

    def abort(self, request_id):
        self.aborted.append(request_id)
        return self.used

    def stop(self):
        pass

    def stats(self):
        return engine_stats(generated_tokens=50, forced_tokens=20, last_step_at=time.monotonic())

    def tokens(self, request_id, ids, finish=None):
        delta = ChoiceDelta(0, ids, "".join(f"{i} " for i in ids), finish)
        usage = Usage(2, len(ids)) if finish else None
        self.on_outputs([RequestOutput(request_id, [delta], finish is not None, None, usage)])

    def fail(self, request_id, error):
        self.on_outputs([RequestOutput(request_id, [], True, error)])


class Bench:
    """A relay with its engine and what Celery would see."""

    def __init__(self, url, name="worker-1", stream_interval=1, **options):
        self.engine = ScriptedEngine()
        self.broken = []
        self.client = connect(url)
        execution = Execution(JobStore(self.client, PREFIX), name)
        self.relay = Relay(
            self.engine,
            execution,
            "m",
            self.broken.append,
            stream_interval=stream_interval,
            **options,
        )
        self.acknowledged = []
        self._started = False

    def start(self):
        """From now on, it also takes jobs without a message."""
        if not self._started:
            self._started = True
            self.relay.start()

    def run(self, job_id="job"):
        self.start()
        self.relay.submit(job_id, lambda: self.acknowledged.append(job_id))

    def started(self):
        assert self.engine.submitted.wait(120)

    def events(self, job_id="job"):
        entries = self.client.xrange(f"{PREFIX}ev:{job_id}")
        return [events.decode(fields[b"d"]) for _, fields in entries]

    def state(self, job_id="job"):
        return self.client.hget(f"{PREFIX}job:{job_id}", "state").decode()


def eventually(condition, timeout=120.0):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
