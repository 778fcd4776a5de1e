import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from completions.contract.sampling import SamplingParams
from completions.contract.usage import Usage
from tests.workers.engine import greedy
from tests.workers.engine.driving import (
    GLM_EXAMPLE,
    MakeEngine,
    advance,
    choice,
    request,
    run,
    steps,
)
from workers.engine.core.output import RequestOutput
from workers.engine.core.request import Request
from workers.engine.exceptions import (
    DeadlineExceeded,
    EngineFault,
    EngineStopped,
    InvalidLogits,
    InvalidRequest,
    RequestFault,
)
from workers.engine.grammar.structured_output import GrammarMatcher


class TestFaults:
    def test_logits_that_are_no_distribution_end_one_request(
        self, make_engine: MakeEngine, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = make_engine()
        forward = engine.runner.forward

        def spoilt(batch: Any) -> torch.Tensor:
            logits: torch.Tensor = forward(batch)
            for row, seq in enumerate(batch.sampled):
                if (
                    engine.live.owner(seq).request.request_id == "bad"
                    and seq.num_output_tokens == 2
                ):
                    logits[row] = torch.nan
            return logits

        monkeypatch.setattr(engine.runner, "forward", spoilt)
        prompt = greedy.prompt(9)
        bad, good = run(engine, request("bad", prompt), request("good", prompt))
        assert isinstance(bad.error, InvalidLogits)
        assert len(bad.choices[0].token_ids) == 2
        assert good.choices[0].token_ids == greedy.generate(tiny_llama, prompt, 16)

    def test_a_mask_that_cannot_be_filled_ends_one_request(
        self, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = make_engine(jump_forward=False)
        fill = GrammarMatcher.forced.fget
        assert fill is not None

        def failing(matcher: GrammarMatcher) -> int | None:
            if matcher.matcher.is_accepting():
                raise ValueError("Invalid buffer size")
            return fill(matcher)

        monkeypatch.setattr(GrammarMatcher, "forced", property(failing))
        bad, good = run(
            engine,
            request("bad", grammar="start: /[ab]*/"),
            request("good", grammar='start: "a" "b" "c"'),
        )
        assert isinstance(bad.error, RequestFault)
        assert good.error is None
        assert good.choices[0].text == "abc"

    def test_values_that_are_not_finite_do_not_reach_the_next_owner_of_the_blocks(
        self, make_engine: MakeEngine, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = make_engine()
        forward = engine.runner.forward

        def poison(batch: Any) -> torch.Tensor:
            logits = forward(batch)
            for layer in engine.runner.cache.layers.values():
                layer.key[:], layer.value[:] = torch.nan, torch.nan
                engine.runner.cache.scrub([0])
            return torch.full_like(logits, torch.nan)

        monkeypatch.setattr(engine.runner, "forward", poison)
        [bad] = run(engine, request(prompt=greedy.prompt(9)))
        assert isinstance(bad.error, InvalidLogits)
        monkeypatch.undo()
        good = choice(engine, request(prompt=greedy.prompt(6, 1), max_tokens=6))
        assert good.token_ids == greedy.generate(tiny_llama, greedy.prompt(6, 1), 6)

    def test_an_unexpected_fault_ends_one_request(
        self, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = make_engine()
        engine.submit(request("bad"))
        engine.submit(request("good"))
        monkeypatch.setattr(engine.live["bad"].sequences[0].choice, "append", [].pop)
        outputs = []
        while engine.live:
            outputs += advance(engine)
        errors = {o.request_id: o.error for o in outputs if o.finished}
        assert isinstance(errors["bad"], RequestFault)
        assert errors["good"] is None

    def test_one_bad_request_in_a_batch_of_64_fails_alone(
        self, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = make_engine(max_num_seqs=64, max_num_batched_tokens=256)
        requests = [request(str(n), (5 + n, 6, 7), max_tokens=8, seed=n, temperature=n % 2)
                    for n in range(64)]  # fmt: skip
        alone = {each.request_id: run(engine, each)[0].choices for each in requests}
        for each in requests:
            engine.submit(each)
        outputs = advance(engine)
        assert engine.stats().running == 64
        monkeypatch.setattr(engine.live["17"].sequences[0].choice, "append", [].pop)
        for _ in range(8 + 4):  # each has eight tokens, and a fault delays no other request
            outputs += advance(engine)
        assert not engine.live
        ended = {o.request_id: o for o in outputs if o.finished}
        assert [i for i, output in ended.items() if output.error is not None] == ["17"]
        assert isinstance(ended["17"].error, RequestFault)
        for each in requests:
            deltas = [d for o in outputs if o.request_id == each.request_id for d in o.deltas]
            ids = [token for delta in deltas for token in delta.token_ids]
            if each.request_id != "17":
                assert ids == alone[each.request_id][0].token_ids
        assert engine.stats().kv_blocks_used == 0

    def test_one_failing_choice_fails_its_request_once(
        self, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = make_engine()
        engine.submit(request("bad", n=3, temperature=1.0))
        monkeypatch.setattr(engine.live["bad"].sequences[1].choice, "append", [].pop)
        [output] = advance(engine)
        assert output.finished
        assert [d.index for d in output.deltas] == [0]
        assert engine.stats().kv_blocks_used == 0
        assert advance(engine) == []

    def test_a_failed_step_ends_everything(
        self, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = make_engine()
        cause = RuntimeError("out of memory")

        def fail(batch: Any) -> torch.Tensor:
            raise cause

        monkeypatch.setattr(engine.runner, "forward", fail)
        outputs: list[RequestOutput] = []
        ended = threading.Event()
        causes: list[BaseException] = []

        def on_fatal(error: BaseException) -> None:
            causes.append(error)
            ended.set()

        engine.submit(request("a"))
        engine.submit(request("b", grammar=GLM_EXAMPLE))
        engine.start(outputs.extend, on_fatal)
        assert ended.wait(120)
        assert causes == [cause]
        assert {o.request_id for o in outputs} == {"a", "b"}
        assert all(o.finished and isinstance(o.error, EngineFault) for o in outputs)
        with pytest.raises(EngineStopped):
            engine.submit(request("c"))
        engine.stop()


class TestLifeCycle:
    def test_a_deadline_ends_running_waiting_and_compiling_requests(
        self, make_engine: MakeEngine
    ) -> None:
        now = 100.0
        engine = make_engine(clock=lambda: now, max_num_seqs=1)
        for name, grammar in (("running", None), ("waiting", None), ("grammar", GLM_EXAMPLE)):
            r = request(name, max_tokens=50, grammar=grammar)
            engine.submit(Request(r.prompts, r.sampling, grammar, deadline=105.0, request_id=name))
        engine.submit(request("other", max_tokens=3))
        first = advance(engine)
        assert [o.request_id for o in first] == ["running"]
        now = 105.0
        ended = advance(engine)
        assert {o.request_id for o in ended if o.finished} == {"running", "waiting", "grammar"}
        used = {o.request_id: o.usage.prompt_tokens for o in ended if o.usage}
        assert used == {"running": 3, "waiting": 0, "grammar": 0}
        seen = {o.request_id: o.error.code for o in ended if o.error}
        assert seen.pop("running") == "generation_timeout"
        assert set(seen.values()) == {"queue_timeout"}  # a retry may help
        rest = [o for _ in range(4) for o in advance(engine)]
        assert {o.request_id for o in rest} == {"other"}
        assert engine.stats().kv_blocks_used == 0

    def test_an_abort_frees_memory_within_a_step_and_silences_the_request(
        self, make_engine: MakeEngine
    ) -> None:
        engine = make_engine(max_num_seqs=1)
        steps(engine, request("a", max_tokens=50), request("b", max_tokens=50), count=2)
        assert engine.stats().kv_blocks_used > 0
        engine.abort("a")
        engine.abort("b")
        engine.abort("unknown")
        assert advance(engine) == []
        stats = engine.stats()
        assert (stats.kv_blocks_used, stats.running, stats.waiting) == (0, 0, 0)

    def test_an_abort_returns_the_usage(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        prompt = tuple(range(1, 41))
        engine.generate([request("before", prompt, max_tokens=1)])
        outputs = steps(engine, request("a", prompt, max_tokens=50), count=6)
        seen = sum(len(d.token_ids) for step in outputs for o in step for d in o.deltas)
        used = engine.abort("a")
        assert used is not None
        assert (used.prompt_tokens, used.completion_tokens) == (40, seen)
        assert seen
        assert 0 < used.cached_tokens < 40
        assert engine.abort("a") is None
        assert engine.abort("unknown") is None

    def test_a_request_uses_only_the_prompt_tokens_that_a_step_began_to_compute(
        self, make_engine: MakeEngine
    ) -> None:
        engine = make_engine(max_num_seqs=1, max_num_batched_tokens=16, max_waiting=9)
        one, other = tuple(range(1, 41)), tuple(range(41, 81))
        engine.submit(request("waits", other, max_tokens=9))
        engine.submit(Request((one, other), SamplingParams(max_tokens=9), request_id="two"))
        assert engine.abort("waits") == Usage(0, 0, 0)
        advance(engine)
        begun = engine.abort("two")
        assert begun is not None
        assert (begun.prompt_tokens, begun.completion_tokens) == (16, 0)
        advance(engine)
        engine.submit(Request((one, other), SamplingParams(max_tokens=9), request_id="two"))
        for _ in range(4):
            advance(engine)
        begun = engine.abort("two")
        assert begun is not None
        assert begun.prompt_tokens == 40
        assert begun.completion_tokens > 0

    def test_an_abort_while_the_grammar_is_compiled_leaves_nothing_behind(
        self, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = make_engine()
        compiling: list[Callable[[], None]] = []
        compiled = engine.structured_output.compile_now
        monkeypatch.setattr(
            engine.structured_output,
            "compile",
            lambda grammar, count, done: compiling.append(lambda: done(compiled(grammar, count))),
        )
        steps(engine, request("a", grammar=GLM_EXAMPLE), count=1)
        engine.abort("a")
        advance(engine)
        for finish in compiling:
            finish()
        advance(engine)
        assert not engine.scheduler.has_work
        assert engine.stats().running == 0

    def test_an_id_may_return_after_an_abort(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        steps(engine, request("a", max_tokens=50), count=2)
        engine.abort("a")
        outputs = steps(engine, request("a", max_tokens=2), count=2)
        assert next(o.deltas[0].token_ids for step in outputs for o in step)
        assert [o.finished for step in outputs for o in step] == [False, True]

    def test_a_live_id_is_refused(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        engine.submit(request("a"))
        with pytest.raises(InvalidRequest):
            engine.submit(request("a"))

    def test_a_higher_priority_starts_first(self, make_engine: MakeEngine) -> None:
        engine = make_engine(max_num_seqs=1)
        low = request("low", max_tokens=1)
        high = Request(low.prompts, low.sampling, priority=3, request_id="high")
        outputs = steps(engine, low, high, count=2)
        assert [o.request_id for step in outputs for o in step] == ["high", "low"]

    def test_a_started_engine_streams_and_then_sleeps(
        self, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = make_engine()
        turns = 0
        step = engine.step

        def counted() -> list[RequestOutput]:
            nonlocal turns
            turns += 1
            return step()

        monkeypatch.setattr(engine, "step", counted)
        outputs: list[RequestOutput] = []
        ended = threading.Semaphore(0)

        def on_outputs(new: list[RequestOutput]) -> None:
            outputs.extend(new)
            for output in new:
                if output.finished:
                    ended.release()

        engine.start(on_outputs)
        for name in ("a", "b"):
            engine.submit(request(name, max_tokens=5, ignore_eos=True))
            assert ended.acquire(timeout=120)
        engine.stop()
        assert turns <= 2 * 5 + 3  # one step per token, and one turn per message
        assert [len(o.deltas[0].token_ids) for o in outputs] == [1] * 10
        assert [o.usage is not None for o in outputs] == [False] * 4 + [True] + [False] * 4 + [True]
        with pytest.raises(EngineStopped):
            engine.submit(request("c"))

    def test_a_sleeping_engine_wakes_for_a_deadline(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        ended: SimpleQueue[RequestOutput] = SimpleQueue()
        engine.start(lambda outputs: [ended.put(output) for output in outputs])
        # The grammar is never compiled, so that nothing but the deadline wakes the engine.
        engine.structured_output.compile = lambda *args: None  # type: ignore[method-assign]
        r = request(grammar=GLM_EXAMPLE)
        soon = time.monotonic() + 0.05
        engine.submit(Request(r.prompts, r.sampling, GLM_EXAMPLE, deadline=soon, request_id="r"))
        output = ended.get(timeout=120)
        engine.stop()
        assert isinstance(output.error, DeadlineExceeded)
        assert time.monotonic() >= soon

    def test_a_long_sleep_is_not_a_long_step(self, make_engine: MakeEngine) -> None:
        now, seen = 0.0, []
        engine = make_engine(clock=lambda: now)
        forward = engine.runner.forward

        def watched(model_input: Any) -> Any:
            seen.append(engine.stats().last_step_at)
            return forward(model_input)

        engine.runner.forward = watched  # type: ignore[method-assign]
        engine.generate([request("a", max_tokens=1)])
        now = 1000.0
        engine.generate([request("b", max_tokens=1)])
        assert seen == [0.0, 1000.0]

    def test_stats_count_sequences_steps_and_blocks(self, make_engine: MakeEngine) -> None:
        engine = make_engine(max_num_seqs=1)
        steps(engine, request("a", max_tokens=9), request("b", max_tokens=9), count=3)
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.steps) == (1, 1, 3)
        assert stats.generated_tokens == 3
        assert stats.kv_blocks_used == 2  # 3 prompt and 2 new tokens in blocks of 4
        assert stats.kv_blocks_total > 100
        assert set(stats.step_seconds) == {"schedule", "forward", "mask", "sample", "append"}
