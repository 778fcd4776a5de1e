"""The engine: accepts requests from any thread, steps on one, and returns what each gained."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Self

import torch

from workers.engine.config import EngineConfig
from workers.engine.cuda.model_runner import CudaModelRunner
from workers.engine.exceptions import (
    DeadlineExceeded,
    EngineError,
    InvalidLogits,
    InvalidRequest,
    NeverStarted,
)
from workers.engine.flight import Flight, PendingTokens
from workers.engine.grammar.mask import GrammarMask
from workers.engine.grammar.structured_output import GrammarMatcher, StructuredOutput
from workers.engine.intake import Intake
from workers.engine.live_requests import LiveRequests
from workers.engine.model.attention_backend import CudaBackend
from workers.engine.model.device import adapt
from workers.engine.model.loader import LoadedModel, load_model
from workers.engine.model.runner import ModelRunner
from workers.engine.request import Completion, Request, RequestOutput, Usage
from workers.engine.request_state import RequestState
from workers.engine.sampling.custom_processors import load_processors
from workers.engine.sampling.sampler import Sampler, SamplerOutput
from workers.engine.scheduling.block_pool import BlockPool
from workers.engine.scheduling.deadlines import Deadlines
from workers.engine.scheduling.prefix_cache import PrefixCache
from workers.engine.scheduling.scheduler import Scheduler
from workers.engine.sequence import Sequence as Seq
from workers.engine.stats import EngineStats
from workers.engine.stopwatch import Stopwatch

logger = logging.getLogger(__name__)


class Engine:
    """Continuous batching over one model.

    After :meth:`start`, it steps on a thread of its own and sleeps while it has no work.
    :meth:`generate` steps in the caller's thread instead. Any thread may call ``submit``,
    ``abort`` and ``stats``; all other state belongs to the stepping thread, which other threads
    reach through the inbox.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        on_gpu = isinstance(loaded.backend, CudaBackend)
        self._runner = CudaModelRunner(loaded, config) if on_gpu else ModelRunner(loaded, config)
        self._pool = BlockPool(self._runner.cache.num_blocks)
        caching = config.enable_prefix_caching
        self._prefix_cache = PrefixCache(self._pool, config.block_size) if caching else None
        self._scheduler = Scheduler(
            self._pool,
            self._prefix_cache,
            config.block_size,
            config.max_num_seqs,
            config.max_num_batched_tokens,
        )
        self._max_live = config.max_num_seqs + config.max_waiting
        self._structured_output = StructuredOutput(
            loaded.vocabulary,
            loaded.eos_token_ids,
            config.grammar_threads,
            config.jump_forward,
            loaded.device,
        )
        self._recorder = loaded.recorder
        self._sampler = Sampler()
        self._intake = Intake(
            vocabulary=loaded.vocabulary,
            vocab_size=loaded.vocab_size,
            eos_token_ids=loaded.eos_token_ids,
            max_model_len=loaded.max_model_len,
            max_cached_tokens=self._pool.num_blocks * config.block_size,
            adapters=loaded.adapters.names,
            sees_experts=loaded.recorder.sees_experts,
            processors=load_processors(config.logit_processors),
            penalizes_prompt=config.repetition_penalty_scope == "all",
        )
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._live = LiveRequests(self._scheduler)
        self._deadlines = Deadlines()
        self._thread: threading.Thread | None = None
        self._ahead: Flight | None = None
        self._steps = 0
        self._generated_tokens = 0
        self._forced_tokens = 0
        self._last_step_at = clock()
        self._step_seconds = Stopwatch()

    @classmethod
    def from_pretrained(cls, path: str | Path, config: EngineConfig) -> Self:
        """Load a model from a folder or by its hub name.

        Raises UnsupportedModel, UnsupportedAdapter, and ValueError for a device or a logit
        processor that does not exist.
        """
        config = adapt(config)
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        # On a thread that ends: OpenMP keeps a pool for each thread that computed. Once the pools
        # outnumber the cores, waiting threads sleep instead of spin, which halves a step's speed.
        with ThreadPoolExecutor(1, "model-loader") as loading:
            loaded = loading.submit(load_model, path, config).result()
        return cls(loaded, config)

    @property
    def max_model_len(self) -> int:
        return self._intake.max_model_len

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
        assert self._thread is None, "the engine was started before"
        self._thread = threading.Thread(
            target=self._serve, args=(on_outputs, on_fatal), name="engine", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current step. Live requests get no further output."""
        self._live.close()
        self._inbox.put(lambda: None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._structured_output.close()

    def submit(self, request: Request) -> None:
        """Queue a request and return at once.

        Raises InvalidRequest, EngineStopped, and EngineOverloaded if more than ``max_waiting``
        sequences would wait: the caller may submit it again later.
        """
        self._enter(request, self._max_live)

    def _enter(self, request: Request, max_live: int | None = None) -> None:
        state = self._intake.accept(request)
        if max_live is not None and len(state.sequences) > max_live:
            raise InvalidRequest(f"A request may have at most {max_live} choices")
        self._live.enter(state, max_live)
        self._inbox.put(partial(self._begin, state))

    def abort(self, request_id: str) -> Usage | None:
        """Drop a live request: it gets no further output, and a step later its memory is free.

        Returns its usage so far, or None if it is not live.
        """
        state = self._live.drop(request_id)
        if state is None:
            return None
        self._inbox.put(partial(self._live.release, state))
        return state.usage()

    def stats(self) -> EngineStats:
        return EngineStats(
            running=self._scheduler.num_running,
            waiting=self._scheduler.num_waiting,
            kv_blocks_used=self._pool.num_used,
            kv_blocks_idle=self._pool.num_idle,
            kv_blocks_total=self._pool.num_blocks,
            preemptions=self._scheduler.preemptions,
            prefix_cache_queries=self._prefix_cache.queries if self._prefix_cache else 0,
            prefix_cache_hits=self._prefix_cache.hits if self._prefix_cache else 0,
            generated_tokens=self._generated_tokens,
            forced_tokens=self._forced_tokens,
            steps=self._steps,
            last_step_at=self._last_step_at,
            step_seconds=self._step_seconds.totals(),
        )

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Run requests to their end in this thread, on an engine that was not started.

        A failed request's completion has its error. A failed step raises and ends the engine. The
        number of requests is not limited.
        """
        assert self._thread is None, "a started engine answers through on_outputs"
        completions = {r.request_id: Completion.begin(r) for r in requests}
        for request in requests:
            self._enter(request)
        try:
            while self._live:
                self._take_inbox(wait=not self._scheduler.has_work)
                for output in self.step():
                    completions[output.request_id].add(output)
        except BaseException as error:
            self._live.fail_all(error)
            raise
        return [completions[r.request_id] for r in requests]

    @torch.inference_mode()
    def step(self) -> list[RequestOutput]:
        """Compute one flat batch, and sample a token for each sequence that has no other left.

        Grammar masks depend on tokens only, so they can be filled while the model runs. On a GPU,
        the next step starts before this one's tokens are known here, if it needs nothing else.
        """
        lap = self._step_seconds.start()
        self._last_step_at = self._clock()  # a watchdog must not count the sleep before it
        for state in self._deadlines.passed(self._last_step_at):
            self._live.fail(state, DeadlineExceeded() if state.started else NeverStarted())
        flight = self._ahead or self._launch(lap)
        self._ahead = None
        if flight is not None:
            self._ahead = self._launch_ahead(flight, lap)
            sampled = flight.land()
            lap("sample")
            rows = flight.batch.all_sampled
            self._scheduler.advance(flight.scheduled, [rows[row] for row in sampled.invalid])
            self._append(rows, sampled, flight.mask)
            self._steps += 1
        outputs = self._live.collect()
        lap("append")
        self._last_step_at = self._clock()
        return outputs

    def _launch(self, lap: Callable[[str], None]) -> Flight | None:
        scheduled = self._scheduler.schedule()
        if not scheduled.chunks:
            return None
        batch = self._runner.prepare(scheduled)
        rows = batch.all_sampled
        filling = self._structured_output.start_mask(rows)
        lap("schedule")
        with self._recorder.watching(batch):
            logits = self._runner.forward(batch)
        lap("forward")
        mask = filling.result() if filling is not None else None
        lap("mask")
        self._sampler.scorer.score_prompts(batch.all_scored, logits[len(rows) :])
        if self._runner.looks_ahead and self._sampler.is_plain(rows, logits.device):
            tokens = PendingTokens.send(*self._sampler.launch(logits[: len(rows)], rows))
            return Flight(scheduled, batch, mask, tokens)
        return Flight(scheduled, batch, mask, self._sampler.sample(logits[: len(rows)], rows, mask))

    def _launch_ahead(self, flight: Flight, lap: Callable[[str], None]) -> Flight | None:
        """Launch the step after ``flight`` if it needs nothing but the tokens on the device."""
        rows, tokens = flight.batch.all_sampled, flight.tokens
        if not rows or not isinstance(tokens, PendingTokens):
            return None
        if (scheduled := self._scheduler.look_ahead(rows)) is None:
            return None
        batch = self._runner.prepare(scheduled, tokens.token_ids)
        lap("schedule")
        logits = self._runner.forward(batch)
        lap("forward")
        for seq in rows:
            seq.num_in_flight = 1
        pending = PendingTokens.send(*self._sampler.launch(logits, rows))
        for seq in rows:
            seq.num_in_flight = 0
        return Flight(scheduled, batch, None, pending)

    def _append(self, rows: list[Seq], sampled: SamplerOutput, mask: GrammarMask | None) -> None:
        """Append each row's token, or end its request with the row's error."""
        faults: dict[int, Exception] = {row: InvalidLogits() for row in sampled.invalid}
        faults.update(sampled.faults)
        faults.update(mask.faults if mask is not None else {})
        for row, (seq, token_id) in enumerate(zip(rows, sampled.token_ids, strict=True)):
            if seq.finished:
                continue  # an earlier row ended its request
            if row in faults:
                self._live.blame(self._live.owner(seq), faults[row])
                continue
            self._generated_tokens += 1
            try:
                seq.append(token_id)
                self._jump_forward(seq)
            except Exception as error:  # noqa: BLE001 - one request's fault must not end the others
                self._live.blame(self._live.owner(seq), error)
                continue
            self._live.touch(seq)
            for sibling in seq.held:
                self._place(sibling)
            seq.held = []
            if seq.choice.finish is not None:
                self._live.finish(seq)

    def _jump_forward(self, seq: Seq) -> int:
        """Append the tokens that the grammar forces next. The step that samples the token after
        them computes them too. Return how many there are."""
        num_tokens = 0
        while not seq.every_position and (token_id := seq.choice.forced_token) is not None:
            seq.append(token_id)
            num_tokens += 1
        seq.choice.num_forced += num_tokens
        self._generated_tokens += num_tokens
        self._forced_tokens += num_tokens
        return num_tokens

    def _serve(
        self,
        on_outputs: Callable[[list[RequestOutput]], None],
        on_fatal: Callable[[BaseException], None] | None,
    ) -> None:
        try:
            while not self._live.closed:
                self._take_inbox(wait=not self._scheduler.has_work)
                if outputs := self.step():
                    on_outputs(outputs)
        except BaseException as error:
            logger.critical("the engine's step failed", exc_info=True)
            try:
                on_outputs(self._live.fail_all(error))
            finally:
                if on_fatal is not None:
                    on_fatal(error)

    def _take_inbox(self, wait: bool) -> None:
        """Run the calls of other threads. With ``wait``, sleep until there is one or a deadline."""
        try:
            if wait:
                self._inbox.get(timeout=self._deadlines.seconds_left(self._clock()))()
            while True:
                self._inbox.get_nowait()()
        except Empty:
            return

    def _begin(self, state: RequestState) -> None:
        """Queue a submitted request, after compiling its grammar if it has one."""
        request = state.request
        self._deadlines.add(state)
        if request.grammar is None:
            self._queue(state)
        else:
            self._structured_output.compile(
                request.grammar,
                len(state.sequences),
                lambda result: self._inbox.put(partial(self._constrain, state, result)),
            )

    def _constrain(self, state: RequestState, result: list[GrammarMatcher] | EngineError) -> None:
        if isinstance(result, EngineError):
            self._live.fail(state, result)
            return
        for seq, matcher in zip(state.sequences, result, strict=True):
            seq.choice.grammar = matcher
        self._queue(state)

    def _queue(self, state: RequestState) -> None:
        """Hand a request's sequences to the scheduler, after replaying what an earlier run
        published and appending what their grammar forces."""
        if state.released:  # while its grammar was compiled
            return
        try:
            for seq in state.sequences:
                seq.choice.replay(seq.token_ids[seq.prompt_len :])
                if self._jump_forward(seq) and seq.choice.finish is None:
                    self._live.touch(seq)
        except Exception as error:  # noqa: BLE001 - one request's fault must not end the others
            self._live.blame(state, error)
            return
        first = state.sequences[0]
        for seq in state.sequences:
            if seq.prompt_index != first.prompt_index:
                first = seq
            if seq is not first and first.logprobs is not None and first.logprobs.prompt_is_due:
                first.held.append(seq)
            else:
                self._place(seq)

    def _place(self, seq: Seq) -> None:
        """Schedule a sequence, or end it if it has nothing to compute."""
        if seq.choice.finish is None or seq.withhold_end():
            self._scheduler.add(seq)
        else:
            self._live.touch(seq)
            self._live.finish(seq)
