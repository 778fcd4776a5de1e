"""The thread between the engine and Redis: claims jobs, publishes each step, ends jobs, sends
heartbeats.

One round trip carries a whole engine step. While Redis does not answer, the same batch is sent
again, which is harmless; the engine goes on, and its output waits here.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from redis.exceptions import RedisError

from completions.contract import tracing
from completions.jobs.events import JobError
from completions.jobs.execute import Claim, Execution, Output, Room, Showing, StepEvent, Verdict
from workers.attempt_spans import AttemptSpan
from workers.build_digest import build
from workers.engine.core.output import RequestOutput
from workers.engine.core.request import Request
from workers.engine.exceptions import (
    EngineError,
    EngineFault,
    EngineOverloaded,
    EngineStopped,
    RequestFault,
)
from workers.engine_protocol import EngineLike
from workers.jobs_to_run import JobsToRun, acknowledge
from workers.live_job import Done, EngineLines, LiveJob, describe_claim
from workers.metrics import WorkerMetrics
from workers.room import MAX_HELD_BYTES, measure_room

logger = logging.getLogger(__name__)

POLL_INTERVAL = 0.25
"""Seconds between two checks whether a job that publishes nothing was cancelled. What is shown of a
stream is stored at the same interval."""
BEAT_INTERVAL = 2.0
"""Seconds between two heartbeats."""
STEP_LIMIT = 120.0
"""Seconds that one engine step may take, by default, before the worker ends itself."""


class Relay:
    """Owns the engine of this process. Only its own thread uses the state below."""

    def __init__(  # noqa: PLR0913 - options of the process are keywords
        self,
        engine: EngineLike,
        execution: Execution,
        model: str,
        on_broken: Callable[[BaseException], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        step_limit: float = STEP_LIMIT,
        stream_interval: int = 1,
        on_turn: Callable[[], None] = lambda: None,
        max_held_bytes: int = MAX_HELD_BYTES,
    ) -> None:
        self._engine = engine
        self.execution = execution
        self._model = model
        self._on_broken = on_broken
        self._clock = clock
        self._step_limit = step_limit
        self._stream_interval = stream_interval
        self._on_turn = on_turn
        self._max_held_bytes = max_held_bytes
        stats = engine.stats()
        self._slots = stats.slots
        self._build = f"{stats.forward}-{build()}"
        self.metrics = WorkerMetrics(engine.stats, clock)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._jobs_to_run = JobsToRun(execution, model, clock)
        self._live: dict[str, LiveJob] = {}
        self._unsubmitted: deque[LiveJob] = deque()
        self._batch: Output | None = None
        """Kept until it has arrived."""
        self._refused: Sequence[tuple[str, StepEvent]] = ()
        """What was to be shown, but only after a complete output."""
        self._must_store = False
        """Whether every step is stored."""
        self._asked_at = self._beat_at = float("-inf")
        self.drain_wanted = False
        """Whether an operator wants the worker drained, as of the last heartbeat."""
        self.accepting = True
        """Whether the worker consumes messages; the consumer sets it."""
        self._closing = False
        self._broken: BaseException | None = None
        self._stopping = False
        self._idle_waiters: list[threading.Event] = []
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    # Called from other threads -------------------------------------------------------------------

    def start(self) -> None:
        EngineLines(self._find_claim).install()
        self._engine.start(self._on_outputs, self._on_fatal)
        self._thread.start()

    def submit(self, job_id: str, done: Done) -> None:
        """Take the message of a job: look whose turn it is, and call `done` once the message may be
        acknowledged: its job has ended, or this worker does not run it."""
        self._inbox.put(lambda: self._accept(job_id, done))

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Take no more jobs, and wait until none is left. Returns False if `timeout` seconds pass
        first."""
        self._closing = True
        idle = threading.Event()
        self._inbox.put(lambda: self._idle_waiters.append(idle))
        return idle.wait(timeout)

    def stop(self, timeout: float = 10.0) -> None:
        """Give running jobs back to the queue and stop the engine."""
        if self._thread.is_alive():
            self._inbox.put(self._stop)
            self._thread.join(timeout)
        self._engine.stop()

    def _find_claim(self, job_id: str) -> Claim | None:
        job = self._live.get(job_id)
        return job.claim if job else None

    def _on_outputs(self, outputs: list[RequestOutput]) -> None:
        self._inbox.put(lambda: self._collect(outputs))

    def _on_fatal(self, error: BaseException) -> None:
        def fail() -> None:
            self._broken = error

        self._inbox.put(fail)

    # The relay's own thread -----------------------------------------------------------------------

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping:
            self._on_turn()
            try:
                self._turn()  # before the first wait, so that a heartbeat shows the worker at once
                pause = 0.0
            except (RedisError, OSError) as error:
                pause = min(1.0, pause * 2 or 0.1)
                logger.warning("Redis does not answer, trying again in %.1f s: %s", pause, error)
            except Exception as error:  # a dead relay in a live worker would keep its jobs forever
                logger.exception("the relay failed")
                self._broken = error
            if self._broken is not None:
                self._give_up(self._broken)
                return
            self._drain_inbox(pause)
        self._release(lost=False)

    def _turn(self) -> None:
        """Do everything that needs Redis, the most urgent first."""
        self._beat()  # before a claim, or the reconciler would take its worker for dead
        self._begin_claimed()
        self._take()
        self._begin_claimed()
        self._submit()
        if self._batch is None:
            self._batch = self._next_batch()
        if self._batch is not None:
            self._publish(self._batch)
            self._batch = None
        if self._idle_waiters and not (self._live or self._jobs_to_run):
            while self._idle_waiters:
                self._idle_waiters.pop().set()

    def _drain_inbox(self, pause: float) -> None:
        """Run the calls that other threads queued; wait for one unless there is other work."""
        if pause:
            time.sleep(pause)
        busy = self._batch or self._refused or self._jobs_to_run.is_urgent
        wait = 0.0 if busy else POLL_INTERVAL if self._live else BEAT_INTERVAL / 2
        try:
            self._inbox.get(timeout=wait)() if wait else self._inbox.get_nowait()()
            while True:
                self._inbox.get_nowait()()
        except queue.Empty:
            pass

    def _accept(self, job_id: str, done: Done) -> None:
        if (job := self._live.get(job_id)) is not None:  # delivered again while it runs here
            job.done.append(done)
        else:
            self._jobs_to_run.add_message(job_id, done)

    def _take(self) -> None:
        if self._closing or not self.accepting:
            self._jobs_to_run.leave_messages()
        else:
            self._jobs_to_run.take(self._measure_rooms)

    def _measure_rooms(self) -> Sequence[Room]:
        held = [job.claim for job in self._live.values() if job.ending is None]
        return measure_room(held, self._slots, self._max_held_bytes)

    def _begin_claimed(self) -> None:
        for claim, done, understood in self._jobs_to_run.iter_claimed():
            self._begin(claim, done, understood)

    def _begin(self, claim: Claim, done: list[Done], understood: Request | JobError) -> None:
        request = understood if isinstance(understood, Request) else None
        published = request.published if request else {}
        self._live[claim.job_id] = job = LiveJob(
            claim=claim,
            done=done,
            prompt_tokens=request.prompt_tokens if request else 0,
            completion_tokens=sum(map(len, published.values())),
            sequence_number=claim.sequence_number,
            asked_at=self._clock(),
            stepped_at=self._clock(),
            pending_since=self._clock(),
            deadline=self._clock() + claim.seconds_left,
            times=self.metrics.begin(claim, resumed=bool(published)),
            span=self._begin_span(claim),
            build=self._build,
            request=request,
            reader=claim.reader,
        )
        logger.info(
            "job %s runs",
            claim.job_id,
            extra={**describe_claim(claim), "attempt": claim.attempt, "age": round(claim.age, 3)},
        )
        if isinstance(understood, JobError):
            job.end("failed", understood, None, self._clock())
        else:
            self._unsubmitted.append(job)

    def _begin_span(self, claim: Claim) -> AttemptSpan | None:
        if (tracer := tracing.tracer) is None:
            return None
        return AttemptSpan.begin(tracer, claim, self._model, self.execution.worker_id)

    def _submit(self) -> None:
        """Submit jobs to the engine, an organization's in order, while its queue has room. The
        others stay here, and can be cancelled or time out like submitted ones."""
        refused: set[str] = set()
        """Organizations whose next job does not fit."""
        for _ in range(len(self._unsubmitted)):
            job = self._unsubmitted.popleft()
            waits = job.request is not None and self._live.get(job.claim.job_id) is job
            if waits and (job.claim.organization_id in refused or not self._submit_one(job)):
                refused.add(job.claim.organization_id)
                self._unsubmitted.append(job)
            else:
                job.request = None
        now = self._clock()
        for job in self._unsubmitted:
            if job.request is not None and now >= job.deadline:
                job.end("failed", JobError("queue_timeout"), None, now)

    def _submit_one(self, job: LiveJob) -> bool:
        """Submit a job to the engine. Returns False if the engine has no room for it now."""
        assert job.request is not None
        try:
            self._engine.submit(job.request)
        except (EngineOverloaded, EngineStopped):  # stopped: it goes back with the others
            return False
        except EngineError as error:
            job.end("failed", JobError(error.code, str(error)), None, self._clock())
        except Exception as error:
            logger.exception("job %s failed", job.claim.job_id, extra=describe_claim(job.claim))
            job.end("failed", JobError(RequestFault.code, repr(error)), None, self._clock())
        return True

    def _collect(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            job = self._live.get(output.request_id)
            if job is None or job.ending is not None or isinstance(output.error, EngineFault):
                continue  # after a fault of the engine, its jobs go back to the queue
            job.take(output, self._clock())

    def _next_batch(self) -> Output | None:
        now = self._clock()
        asking = bool(self._refused) or now - self._asked_at >= POLL_INTERVAL
        shown = [each for each in self._refused if each[1].job_id in self._live]
        steps, endings = [], []
        for job in self._live.values():
            is_last = job.ending is not None
            if job.choices and (is_last or job.is_due(self._stream_interval, asking, now)):
                step = job.step(self._stream_interval, now)
                if job.reader:
                    shown.append((job.reader, step))
            has_asked = job.asked_at > self._asked_at and not job.reader
            must_store, last = job.must_store(asking or self._must_store), None
            if must_store and is_last and not job.reader:
                last = job.store()  # what was shown of a stream is stored before it is forgotten
            elif must_store or (asking and not is_last and not has_asked):
                steps.append(job.store())
                job.asked_at = now
            if job.ending is not None:
                number = job.sequence_number
                endings.append(replace(job.ending, sequence_number=number, last=last))
        if asking:
            self._asked_at, self._refused = now, ()
        output = Output(steps, endings, shown, is_complete=asking)
        return output if steps or endings or shown else None

    def _publish(self, batch: Output) -> None:
        reply = self.execution.send(batch)
        if reply.showing is Showing.REFUSED:
            self._refused = batch.shown
        elif batch.shown:
            self._must_store = reply.showing is Showing.STORE
        for ending in batch.endings:
            self._jobs_to_run.note_end()
            acknowledge(self._live.pop(ending.job_id).done)
        for step, verdict in zip(batch.steps, reply.verdicts, strict=True):
            if verdict is not Verdict.GO_ON and (job := self._live.get(step.job_id)) is not None:
                self._obey(job, verdict)

    def _obey(self, job: LiveJob, verdict: Verdict) -> None:
        """Do what Redis says of a job that is not to go on as before."""
        if verdict is Verdict.UNREAD:
            job.reader = ""
            return
        used = self._engine.abort(job.claim.job_id)
        if verdict is Verdict.CANCEL:
            if job.ending is None:
                job.end("cancelled", None, used, self._clock())
            return
        logger.warning(
            "job %s runs on another worker now",
            job.claim.job_id,
            extra=describe_claim(job.claim),
        )
        if job.span is not None and job.ending is None:
            job.span.leave("taken over")
        acknowledge(self._live.pop(job.claim.job_id).done)

    def _beat(self) -> None:
        now = self._clock()
        if now - self._beat_at < BEAT_INTERVAL:
            return
        stats = self._engine.stats()
        if stats.running and now - stats.last_step_at > self._step_limit:
            limit = f"{self._step_limit:.0f} s"
            self._broken = TimeoutError(f"an engine step has taken more than {limit}")
            return
        facts = {
            **stats.counters(),
            "jobs": len(self._live),
            "forward": stats.forward,
            "build": self._build,
        }
        page = self.metrics.page()
        self.drain_wanted = self.execution.beat(self._model, facts, self.accepting, page)
        self._beat_at = now

    def _stop(self) -> None:
        self._stopping = True

    def _release(self, lost: bool) -> None:
        """Give unfinished jobs back to the queue; other attempts continue what was published."""
        try:
            if self._batch is None:
                self._asked_at = float("-inf")  # also publish what is not due
                for job in self._live.values():
                    job.stepped_at = float("-inf")
                self._batch = self._next_batch()
            if self._batch is not None:
                self._publish(self._batch)
            jobs = self._live.values()
            self._give_back([job for job in jobs if job.request is None], lost)
            self._give_back([job for job in jobs if job.request is not None], lost=False)
            self.execution.release(self._jobs_to_run.list_attempts(), lost=False)
            self.execution.stop_beating()
            if jobs:
                logger.info("gave %d unfinished jobs back to the queue", len(jobs))
            for job in self._live.values():
                logger.info("job %s goes back", job.claim.job_id, extra=describe_claim(job.claim))
                if job.span is not None:
                    job.span.leave("given back")
        except (RedisError, OSError) as error:
            logger.warning("cannot give jobs back; the reconciler will find them: %s", error)

    def _give_back(self, jobs: list[LiveJob], lost: bool) -> None:
        """Return jobs to the queue. One that the engine never took cannot have broken it."""
        self.execution.release([(job.claim.job_id, job.claim.attempt) for job in jobs], lost)

    def _give_up(self, error: BaseException) -> None:
        """Give all jobs back and end the process: a broken engine cannot serve again."""
        logger.critical("the engine is broken; this worker ends: %s", error)
        self._stopping = True
        try:
            self._release(lost=True)
        except Exception:
            logger.exception("cannot give jobs back; the reconciler will find them")
        finally:
            self._on_broken(error)
