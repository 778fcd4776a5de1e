"""The engine: accepts requests from any thread, steps on one, and returns their outputs."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

import torch

from completions.contract.job_request import Task
from completions.contract.usage import Usage
from workers.engine.backends.base.lora import Adapters
from workers.engine.backends.base.registered_adapters import RegisteredAdapters
from workers.engine.backends.device import make_current
from workers.engine.backends.parallel.followers import Followers
from workers.engine.config import EngineConfig
from workers.engine.core.bad_words import list_never_allowed
from workers.engine.core.output import Completion, RequestOutput
from workers.engine.core.prefix_cache import PrefixCache
from workers.engine.core.request import Audience, Request
from workers.engine.core.runner import Runner
from workers.engine.exceptions import (
    DeadlineExceeded,
    EngineError,
    GrammarError,
    InvalidRequest,
    NeverStarted,
    NoRoomForAdapter,
    RankLost,
)
from workers.engine.grammar.structured_output import GrammarMatcher, StructuredOutput
from workers.engine.intake import Intake
from workers.engine.launched_steps import Flight, Launcher
from workers.engine.live_requests import Deadlines, LiveRequests, RequestState
from workers.engine.progress import Progress
from workers.engine.scheduling.block_pool import BlockPool
from workers.engine.scheduling.chunk_sizes import ChunkSizes
from workers.engine.scheduling.scheduler import Scheduler
from workers.engine.scheduling.step_times import measure_work
from workers.engine.speculation.speculation import Speculation
from workers.engine.stats import EngineStats
from workers.engine.stopwatch import Stopwatch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine is made of, as :mod:`workers.engine.build` composes it."""

    forward: str
    """What computes the model: ``c``, ``torch``, ``cuda`` or ``general``."""
    device: torch.device
    runner: Runner
    pool: BlockPool
    prefix_cache: PrefixCache | None
    chunk_sizes: ChunkSizes
    scheduler: Scheduler
    speculation: Speculation | None
    structured_output: StructuredOutput
    launcher: Launcher
    intake: Intake
    live: LiveRequests
    progress: Progress
    adapters: Adapters | None = None
    """Where adapters can be added; None for a model that is split."""
    followers: Followers | None = None
    """The processes that compute the other parts of a model that is split."""


class Engine:
    """Continuous batching over one model.

    After :meth:`start`, it steps on a thread of its own and sleeps while it has no work.
    :meth:`generate` steps in the caller's thread instead. Any thread may call ``submit``,
    ``abort`` and ``stats``; all other state belongs to the stepping thread, which other threads
    reach through the inbox. Its parts are public so that a test can watch or break one of them.
    """

    def __init__(
        self, parts: EngineParts, config: EngineConfig, clock: Callable[[], float]
    ) -> None:
        self._clock = clock
        self._device = parts.device
        self.forward = parts.forward
        self.followers = parts.followers
        self.runner = parts.runner
        self.pool = parts.pool
        self._prefix_cache = parts.prefix_cache
        self._chunk_sizes = parts.chunk_sizes
        self.scheduler = parts.scheduler
        self.speculation = parts.speculation
        self.structured_output = parts.structured_output
        self.sampler = parts.launcher.sampler
        self._launcher = parts.launcher
        self._intake = parts.intake
        self.live = parts.live
        self._progress = parts.progress
        self._block_size = config.block_size
        self._max_running = config.max_num_seqs
        self._max_live = config.max_num_seqs + config.max_waiting
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.registered_adapters: RegisteredAdapters | None = None
        if parts.adapters is not None and config.adapter_store is not None:
            self.registered_adapters = RegisteredAdapters(
                parts.adapters,
                config.adapter_store,
                config.max_adapter_bytes,
                self._inbox.put,
                parts.live.list_adapters,
            )
        self._deadlines = Deadlines()
        self._thread: threading.Thread | None = None
        self._ahead: Flight | None = None
        self._steps = 0
        self._last_step_at = clock()
        self._step_seconds = Stopwatch()

    @property
    def vocab_size(self) -> int:
        return self._intake.vocab_size

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self._intake.eos_token_ids

    def start(
        self,
        on_outputs: Callable[[list[RequestOutput]], None],
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Begin to step on a thread.

        The thread calls ``on_outputs`` after each step with outputs; it must not block. If a step
        fails, the thread ends every live request with an error, then calls ``on_fatal``.
        """
        assert self._thread is None, "the engine has been started already"
        if self.followers is not None:
            self.followers.watch(partial(self._lose, on_fatal))
        self._thread = threading.Thread(
            target=self._serve, args=(on_outputs, on_fatal), name="engine", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current step. Live requests get no further output."""
        self.live.close()
        self._inbox.put(lambda: None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self.structured_output.close()
        if self.registered_adapters is not None:
            self.registered_adapters.close()
        if self.followers is not None:
            self.followers.stop()

    def submit(self, request: Request) -> None:
        """Queue a request and return at once.

        Raises InvalidRequest, EngineStopped, and EngineOverloaded if more than ``max_waiting``
        sequences would wait: the caller may submit the request again later.
        """
        self._enter(request, self._max_live)

    def _enter(self, request: Request, max_live: int | None = None) -> None:
        state = self._intake.accept(request)
        if max_live is not None and len(state.sequences) > max_live:
            raise InvalidRequest(f"A request may have at most {max_live} choices")
        self.live.enter(state, max_live)
        self._inbox.put(partial(self._begin, state))

    def abort(self, request_id: str) -> Usage | None:
        """Drop a live request: it gets no further output, and a step later its memory is free.

        Returns its usage so far, or None if it is not live.
        """
        state = self.live.drop(request_id)
        if state is None:
            return None
        self._inbox.put(partial(self.live.release, state))
        return state.usage()

    def stats(self) -> EngineStats:
        registered = self.registered_adapters
        return EngineStats(
            forward=self.forward,
            slots=self._max_running,
            running=self.scheduler.num_running,
            waiting=self.scheduler.num_waiting,
            kv_blocks_used=self.pool.num_used,
            kv_blocks_idle=self.pool.num_idle,
            kv_blocks_total=self.pool.num_blocks,
            block_size=self._block_size,
            loaded_adapters=len(registered.references) if registered is not None else 0,
            preemptions=self.scheduler.preemptions,
            prefix_cache_queries=self._prefix_cache.queries if self._prefix_cache else 0,
            prefix_cache_hits=self._prefix_cache.hits if self._prefix_cache else 0,
            generated_tokens=self._progress.generated_tokens,
            forced_tokens=self._progress.forced_tokens,
            drafted_tokens=self.speculation.drafted_tokens if self.speculation else 0,
            accepted_tokens=self.speculation.accepted_tokens if self.speculation else 0,
            steps=self._steps,
            last_step_at=self._last_step_at,
            step_seconds=self._step_seconds.totals(),
        )

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Run requests to their end in this thread, on an engine that was not started.

        The completion of a failed request carries its error. A failed step raises and ends the
        engine. The number of requests is not limited.
        """
        assert self._thread is None, "a started engine answers through on_outputs"
        completions = {r.request_id: Completion.begin(r) for r in requests}
        for request in requests:
            self._enter(request)
        try:
            while self.live:
                for output in self.turn():
                    completions[output.request_id].add(output)
        except BaseException as error:
            self.live.fail_all(error)
            raise
        return [completions[r.request_id] for r in requests]

    def turn(self, wait: bool = True) -> list[RequestOutput]:
        """:meth:`receive`, then :meth:`step`. With ``wait``, sleep while there is no work."""
        self.receive(wait and not self.scheduler.has_work)
        return self.step()

    def receive(self, wait: bool) -> None:
        """Run calls from other threads. With ``wait``, sleep until a call or a deadline."""
        try:
            if wait:
                self._inbox.get(timeout=self._deadlines.seconds_left(self._clock()))()
            while True:
                self._inbox.get_nowait()()
        except Empty:
            return

    @torch.inference_mode()
    def step(self) -> list[RequestOutput]:
        """Compute one flat batch, and sample a token for each sequence with none left to compute.

        On a GPU, the next step's forward pass starts before this one's tokens reach the host, if it
        depends on nothing else.
        """
        lap = self._step_seconds.start()
        work = None
        self._last_step_at = began = self._clock()  # a watchdog must not count the sleep before it
        for state in self._deadlines.pop_passed(self._last_step_at):
            self.live.fail(state, DeadlineExceeded() if state.has_started else NeverStarted())
        flight = self._ahead or self._launcher.launch(lap)
        self._ahead = None
        if flight is not None:
            flight = self._launcher.choose(flight, lap)
            self._ahead = self._launcher.launch_ahead(flight, lap)
            sampled = flight.land()
            lap("sample")
            work = measure_work(flight.scheduled.chunks)
            self._progress.record(flight, sampled)
            self._steps += 1
        outputs = self.live.collect()
        lap("append")
        self._last_step_at = self._clock()
        if work is not None:
            self._chunk_sizes.times.note(work, self._last_step_at - began)
        return outputs

    def _serve(
        self,
        on_outputs: Callable[[list[RequestOutput]], None],
        on_fatal: Callable[[BaseException], None] | None,
    ) -> None:
        try:
            make_current(self._device)
            while not self.live.closed:
                if outputs := self.turn():
                    on_outputs(outputs)
        except BaseException as error:
            logger.critical("the engine's step failed", exc_info=True)
            try:
                on_outputs(self.live.fail_all(error))
            finally:
                if on_fatal is not None:
                    on_fatal(error)

    def _lose(self, on_fatal: Callable[[BaseException], None] | None, error: RankLost) -> None:
        """Report a follower that has ended. The thread that steps may be idle, or wait for it."""
        logger.critical("the engine ends: %s", error)
        if on_fatal is not None:
            on_fatal(error)

    def _begin(self, state: RequestState) -> None:
        """Queue a submitted request, once its adapters are loaded and its grammar is compiled."""
        self._deadlines.add(state)
        self._load_adapters(state)

    def _load_adapters(self, state: RequestState, error: EngineError | None = None) -> None:
        """Load what is missing of a request's adapters; ``error`` says why the last one cannot
        be. A request that no client waits for waits until its adapter has room."""
        names, registered = state.request.adapters, self.registered_adapters
        if state.is_released:  # while an adapter was read
            return
        can_wait = state.request.audience is Audience.NOBODY
        if registered and isinstance(error, NoRoomForAdapter) and can_wait:
            registered.wait_for_room(error.size, partial(self._load_adapters, state))
        elif error is not None:
            self.live.fail(state, error)
        elif names and registered and (missing := registered.find_missing(names)) is not None:
            registered.load(missing, partial(self._load_adapters, state))
        else:
            self._compile(state)

    def _compile(self, state: RequestState) -> None:
        request = state.request
        if request.grammar is None:
            self._progress.begin(state)
        else:
            compile_ = self.structured_output.compile
            if request.close:
                limits = [seq.max_output_tokens for seq in state.sequences]
                banned = list_never_allowed(request.sampling, self.vocab_size)
                compile_ = partial(compile_, limits=limits, banned=banned)
            compile_(request.grammar, len(state.sequences), partial(self._receive, state))

    def _receive(self, state: RequestState, result: list[GrammarMatcher] | EngineError) -> None:
        """Take a compiled grammar, on the thread that compiled it. Continuations are followed here,
        so that no step waits for them."""
        if not isinstance(result, EngineError) and state.request.task is Task.SCORE:
            try:
                state.follow(result)
            except GrammarError as error:
                result = error
            except Exception as error:  # noqa: BLE001 - ends this request, not the thread
                result = GrammarError(str(error))
        self._inbox.put(partial(self._constrain, state, result))

    def _constrain(self, state: RequestState, result: list[GrammarMatcher] | EngineError) -> None:
        if isinstance(result, EngineError):
            self.live.fail(state, result)
            return
        if state.request.task is not Task.SCORE:
            for seq, matcher in zip(state.sequences, result, strict=True):
                seq.choice.grammar = matcher
        self._progress.begin(state)
