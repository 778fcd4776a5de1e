import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.workers.engine import greedy
from workers.engine.engine import Engine
from workers.engine.exceptions import (
    DeadlineExceeded,
    EngineFault,
    EngineStopped,
    GrammarError,
    InvalidLogits,
    InvalidRequest,
    RequestFault,
)
from workers.engine.request import (
    ChoiceDelta,
    Completion,
    FinishReason,
    Request,
    RequestOutput,
    SamplingParams,
)

MakeEngine = Callable[..., Engine]

EOS = 0
GLM_EXAMPLE = 'start: "A" | "B"'


def request(
    request_id: str = "r",
    prompt: tuple[int, ...] = (5, 6, 7),
    *,
    grammar: str | None = None,
    **params: Any,
) -> Request:
    sampling = SamplingParams(**{"temperature": 0, **params})
    return Request(request_id, (prompt,), sampling, grammar)


def run(engine: Engine, *requests: Request) -> list[Completion]:
    return engine.generate(requests)


def choice(engine: Engine, request: Request) -> ChoiceDelta:
    [completion] = engine.generate([request])
    assert completion.error is None
    [choice] = completion.choices
    return choice


def steps(engine: Engine, *requests: Request, count: int) -> list[list[RequestOutput]]:
    for r in requests:
        engine.submit(r)
    return [advance(engine) for _ in range(count)]


def advance(engine: Engine) -> list[RequestOutput]:
    """One turn of the engine's thread, in this one."""
    engine._take_inbox(wait=False)
    return engine.step()


class TestGreedy:
    """Token for token what transformers generates."""

    @pytest.mark.parametrize("length", [1, 3, 4, 5, 23, 24, 25, 48, 49, 130])
    def test_alone_over_chunk_and_block_borders(
        self, engine: Engine, tiny_llama: Path, length: int
    ) -> None:
        prompt = greedy.prompt(length)
        expected = greedy.generate(tiny_llama, prompt, 24)
        assert choice(engine, request(prompt=prompt, max_tokens=24)).token_ids == expected

    def test_in_a_mixed_batch_larger_than_the_slots(self, engine: Engine, tiny_llama: Path) -> None:
        prompts = [greedy.prompt(length, salt=length) for length in range(1, 60, 5)]
        requests = [request(str(i), prompt, max_tokens=4 + i) for i, prompt in enumerate(prompts)]
        for i, completion in enumerate(run(engine, *requests)):
            expected = greedy.generate(tiny_llama, prompts[i], 4 + i)
            assert completion.choices[0].token_ids == expected

    def test_joining_while_others_run(self, make_engine: MakeEngine, tiny_llama: Path) -> None:
        engine = make_engine()
        steps(engine, request("first", greedy.prompt(40), max_tokens=30), count=5)
        engine.submit(request("late", greedy.prompt(33, 1), max_tokens=12))
        tokens: dict[str, list[int]] = {"first": [], "late": []}
        while "late" in engine._live:
            for output in advance(engine):
                tokens[output.request_id] += output.deltas[0].token_ids
        assert tokens["late"] == greedy.generate(tiny_llama, greedy.prompt(33, 1), 12)

    @pytest.mark.parametrize("budget", [9, 16, 512])
    def test_under_any_budget(self, make_engine: MakeEngine, tiny_llama: Path, budget: int) -> None:
        engine = make_engine(max_num_batched_tokens=budget)
        prompts = [greedy.prompt(length, salt=3) for length in (31, 2, 18)]
        requests = [request(str(i), p, max_tokens=8) for i, p in enumerate(prompts)]
        got = [completion.choices[0].token_ids for completion in run(engine, *requests)]
        assert got == [greedy.generate(tiny_llama, prompt, 8) for prompt in prompts]


class TestSampling:
    PARAMS: tuple[dict[str, Any], ...] = (
        {"temperature": 1.0, "seed": 1},
        {"temperature": 0.8, "seed": 2, "top_p": 0.9, "top_k": 40},
        {"temperature": 1.2, "seed": 3, "min_p": 0.02, "frequency_penalty": 0.5},
        {"temperature": 1.0, "seed": 4, "repetition_penalty": 1.3, "presence_penalty": 0.2},
        {"temperature": 0},
    )

    def test_a_seed_gives_the_same_tokens_alone_and_among_neighbours(self, engine: Engine) -> None:
        requests = [
            request(str(i), greedy.prompt(3 + 4 * i), max_tokens=16, ignore_eos=True, **params)
            for i, params in enumerate(self.PARAMS)
        ]
        together = [c.choices for c in run(engine, *requests)]
        alone = [run(engine, r)[0].choices for r in requests]
        assert together == alone
        assert len({tuple(choices[0].token_ids) for choices in alone}) == len(requests)

    def test_choices_differ_and_are_those_of_their_place(self, engine: Engine) -> None:
        params = SamplingParams(max_tokens=8, n=3, seed=9, ignore_eos=True)
        [whole] = run(engine, Request("r", ((5, 6), (7, 8, 9)), params))
        assert [c.index for c in whole.choices] == [0, 1, 2, 3, 4, 5]
        assert len({tuple(c.token_ids) for c in whole.choices}) == 6
        [first] = run(engine, Request("r", ((5, 6),), params))
        assert first.choices == whole.choices[:3]
        assert whole.usage is not None
        assert whole.usage.prompt_tokens == 5
        assert whole.usage.completion_tokens == 48


class TestStopping:
    def test_the_end_token_counts_and_says_nothing(self, engine: Engine) -> None:
        [completion] = run(engine, request(logit_bias={EOS: 100.0}, max_tokens=5))
        assert completion.choices == [ChoiceDelta(0, [EOS], "", FinishReason.STOP, EOS)]
        assert completion.usage is not None
        assert completion.usage.completion_tokens == 1

    def test_ignore_eos(self, engine: Engine) -> None:
        ended = choice(engine, request(logit_bias={EOS: 100.0}, max_tokens=3, ignore_eos=True))
        assert (ended.token_ids, ended.finish_reason) == ([EOS] * 3, FinishReason.LENGTH)

    def test_min_tokens(self, engine: Engine) -> None:
        ended = choice(engine, request(logit_bias={EOS: 100.0}, max_tokens=9, min_tokens=4))
        assert len(ended.token_ids) == 5
        assert ended.token_ids.index(EOS) == 4

    def test_a_stop_string_cuts_the_text(self, engine: Engine) -> None:
        whole = choice(engine, request(max_tokens=12))
        stop = whole.text[3:6]
        cut = choice(engine, request(max_tokens=12, stop=("never", stop)))
        assert cut.text == whole.text[: whole.text.index(stop)]
        assert (cut.finish_reason, cut.matched_stop) == (FinishReason.STOP, stop)

    def test_the_context_ends_what_max_tokens_does_not(self, make_engine: MakeEngine) -> None:
        engine = make_engine(max_model_len=20)
        ended = choice(engine, request(prompt=greedy.prompt(16), max_tokens=50, ignore_eos=True))
        assert (len(ended.token_ids), ended.finish_reason) == (4, FinishReason.LENGTH)


class TestGrammar:
    @pytest.mark.parametrize("grammar", ['start: ""', "start: /a{0}/"])
    def test_a_grammar_of_the_empty_text_ends_without_a_token(
        self, engine: Engine, grammar: str
    ) -> None:
        [completion] = run(engine, request(grammar=grammar, max_tokens=5))
        [only] = completion.choices
        assert (only.text, only.token_ids, only.matched_stop) == ("", [], None)
        assert only.finish_reason == "stop"
        assert completion.usage is not None
        assert completion.usage.completion_tokens == 0

    def test_the_end_of_a_grammar_needs_no_end_token(self, engine: Engine) -> None:
        [completion] = run(engine, request(grammar=GLM_EXAMPLE, max_tokens=2))
        [ended] = completion.choices
        assert ended.text in {"A", "B"}
        assert (ended.finish_reason, ended.matched_stop) == (FinishReason.STOP, None)
        assert completion.usage is not None
        assert completion.usage.completion_tokens == len(ended.token_ids) == 1

    def test_a_schema_gives_an_instance_for_every_choice(self, engine: Engine) -> None:
        properties = {"age": {"type": "integer", "maximum": 99, "minimum": 1},
                      "kind": {"enum": ["x", "yy"]}}  # fmt: skip
        schema = {"type": "object", "properties": properties, "required": ["age", "kind"],
                  "additionalProperties": False,
                  "x-guidance": {"whitespace_flexible": False}}  # fmt: skip
        grammar = json.dumps({"grammars": [{"json_schema": schema}]})
        params = SamplingParams(max_tokens=60, n=4, temperature=1.5, seed=3)
        [completion] = run(engine, Request("r", ((5, 6),), params, grammar))
        for ended in completion.choices:
            record = json.loads(ended.text)
            assert 1 <= record["age"] <= 99
            assert record["kind"] in {"x", "yy"}
            assert ended.matched_stop is None

    def test_the_end_token_may_end_an_open_grammar(self, engine: Engine) -> None:
        ended = choice(
            engine, request(grammar="start: /[a-z]*/", logit_bias={EOS: 100.0}, max_tokens=9)
        )
        assert (ended.token_ids, ended.text, ended.matched_stop) == ([EOS], "", EOS)

    def test_a_complete_grammar_ends_before_min_tokens(self, engine: Engine) -> None:
        ended = choice(engine, request(grammar=GLM_EXAMPLE, max_tokens=9, min_tokens=5))
        assert len(ended.token_ids) == 1

    def test_constrained_and_free_rows_share_a_batch(
        self, engine: Engine, tiny_llama: Path
    ) -> None:
        requests = [
            request("free", max_tokens=10),
            request("digits", grammar="start: /[0-9]{6}/", max_tokens=10),
            request("bad", grammar='start: "a" nope', max_tokens=10),
        ]
        free, digits, bad = run(engine, *requests)
        assert free.choices[0].token_ids == greedy.generate(tiny_llama, (5, 6, 7), 10)
        assert digits.choices[0].text.isdigit()
        assert isinstance(bad.error, GrammarError)
        assert bad.choices[0].token_ids == []

    def test_a_matcher_in_error_ends_its_own_request(
        self, make_engine: MakeEngine, tokenizer: Tokenizer
    ) -> None:
        engine = make_engine()
        grammar = "start: /[0-9]{9}/"
        requests = [request(name, grammar=grammar, max_tokens=20) for name in ("good", "bad")]
        for r in requests:
            engine.submit(r)
        while engine.stats().waiting < 2:  # both are compiled before either begins
            engine._take_inbox(wait=True)
        engine.step()
        broken: Any = engine._live["bad"].sequences[0].choice.grammar
        broken.matcher.consume_token(tokenizer.token_to_id("x"))
        outputs = []
        while engine._live:
            outputs += advance(engine)
        ended = {o.request_id: o for o in outputs if o.finished}
        assert isinstance(ended["bad"].error, GrammarError)
        assert ended["good"].error is None
        assert "".join(
            d.text for o in outputs if o.request_id == "good" for d in o.deltas
        ).isdigit()
        assert engine.stats().kv_blocks_used == 0

    def test_a_grammar_that_grows_too_ambiguous_ends_alone(self, engine: Engine) -> None:
        """The web tier refuses it; an engine used by itself meets its limits on the way."""
        neighbours = [
            request("free", max_tokens=90, ignore_eos=True),
            request("digits", grammar="start: /[0-9]{80}/", max_tokens=90),
            request("drawn", grammar="start: /[a-z ]{400}/", max_tokens=90, temperature=1, seed=4),
        ]
        alone = [run(engine, each)[0].choices for each in neighbours]
        grammar = 'start: s\ns: s s s s s s | /[a-z]/ | ""'
        ambiguous = request(grammar=grammar, max_tokens=480, ignore_eos=True)
        *beside, ended = run(engine, *neighbours, ambiguous)
        assert isinstance(ended.error, GrammarError)
        assert re.search("too ambiguous|too complex on the way", str(ended.error))
        assert len(ended.choices[0].token_ids) > 1
        assert [each.choices for each in beside] == alone
        assert [each.error for each in beside] == [None] * 3
        assert engine.stats().kv_blocks_used == 0


class TestFailover:
    """A run that goes on from what another published says the rest, and only the rest."""

    @settings(
        deadline=None,
        max_examples=25,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(
        st.lists(st.integers(0, 14), min_size=2, max_size=2),
        st.sampled_from(
            [
                {},
                {"temperature": 1.0, "seed": 8, "frequency_penalty": 0.4},
                {"temperature": 1.0, "seed": 3, "stop": ("e", "ab")},
                {"temperature": 1.0, "seed": 5, "min_tokens": 6},
                {"temperature": 1.0, "seed": 5, "grammar": "start: /[a-z]{3,9} ?[0-9]+/"},
            ]
        ),
    )
    def test_it_equals_the_unbroken_run(
        self, engine: Engine, cuts: list[int], case: dict[str, Any]
    ) -> None:
        params = {"max_tokens": 14, "temperature": 0, "n": 2, **case}
        grammar = params.pop("grammar", None)
        whole = Request("r", ((5, 6, 7),), SamplingParams(**params), grammar)
        parts: list[list[ChoiceDelta]] = [[], []]
        engine.submit(whole)
        while engine._live:
            for output in advance(engine):
                for delta in output.deltas:
                    parts[delta.index].append(delta)
        published = [
            [d for d in part if d.token_ids][:cut] for part, cut in zip(parts, cuts, strict=True)
        ]
        ids = {i: tuple(t for d in part for t in d.token_ids) for i, part in enumerate(published)}
        broken = Request("r", whole.prompts, whole.sampling, grammar, published=ids)
        [rest] = run(engine, broken)
        for i, part in enumerate(parts):
            assert list(ids[i]) + rest.choices[i].token_ids == [
                t for d in part for t in d.token_ids
            ]
            before = "".join(d.text for d in published[i])
            assert before + rest.choices[i].text == "".join(d.text for d in part)
            assert rest.choices[i].finish_reason == part[-1].finish_reason
            assert rest.choices[i].matched_stop == part[-1].matched_stop
        assert rest.usage is not None
        assert rest.usage.completion_tokens == sum(len(d.token_ids) for p in parts for d in p)

    def test_a_replay_that_is_already_over_gives_just_the_end(self, engine: Engine) -> None:
        whole = choice(engine, request(max_tokens=6, ignore_eos=True))
        broken = Request(
            "r",
            ((5, 6, 7),),
            SamplingParams(max_tokens=6, temperature=0, ignore_eos=True),
            published={0: tuple(whole.token_ids)},
        )
        before = engine.stats().steps
        assert choice(engine, broken) == ChoiceDelta(0, [], "", FinishReason.LENGTH)
        assert engine.stats().steps == before

    def test_an_end_that_was_published_is_not_told_again(self, engine: Engine) -> None:
        params = SamplingParams(max_tokens=6, temperature=1, seed=3, n=3, ignore_eos=True)
        whole = Request("r", ((5, 6, 7),), params)
        [expected] = run(engine, whole)
        published = {
            i: tuple(c.token_ids[: 6 - 2 * (i == 1)]) for i, c in enumerate(expected.choices)
        }
        again = replace(whole, published=published, published_ends=frozenset({0}))
        outputs = list(chain.from_iterable(steps(engine, again, count=9)))
        told = [delta for output in outputs for delta in output.deltas]
        assert [delta.index for delta in told if delta.finish_reason] == [2, 1]
        assert {delta.index for delta in told} == {1, 2}
        assert outputs[-1].finished
        assert outputs[-1].usage == expected.usage
        everything = replace(whole, published={0: published[0]}, published_ends=frozenset({0}))
        everything = replace(everything, sampling=replace(params, n=1))
        [rest] = [output for step in steps(engine, everything, count=2) for output in step]
        assert (rest.deltas, rest.finished) == ([], True)

    def test_what_the_grammar_never_allowed_is_an_error(
        self, engine: Engine, tokenizer: Tokenizer
    ) -> None:
        broken = Request(
            "r",
            ((5,),),
            SamplingParams(),
            GLM_EXAMPLE,
            published={0: (tokenizer.token_to_id("x"),)},
        )
        [completion] = run(engine, broken)
        assert isinstance(completion.error, GrammarError)


class TestFaults:
    def test_logits_that_are_no_distribution_end_one_request(
        self, make_engine: MakeEngine, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = make_engine()
        forward = engine._runner.forward

        def spoilt(batch: Any) -> torch.Tensor:
            logits: torch.Tensor = forward(batch)
            for row, seq in enumerate(batch.sampled):
                if seq.state.request.request_id == "bad" and seq.num_output_tokens == 2:
                    logits[row] = torch.nan
            return logits

        monkeypatch.setattr(engine._runner, "forward", spoilt)
        prompt = greedy.prompt(9)
        bad, good = run(engine, request("bad", prompt), request("good", prompt))
        assert isinstance(bad.error, InvalidLogits)
        assert len(bad.choices[0].token_ids) == 2
        assert good.choices[0].token_ids == greedy.generate(tiny_llama, prompt, 16)

    def test_values_that_are_not_finite_do_not_reach_the_next_owner_of_the_blocks(
        self, make_engine: MakeEngine, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = make_engine()
        forward = engine._runner.forward

        def poison(batch: Any) -> torch.Tensor:
            logits = forward(batch)
            for layer in engine._runner.cache.layers.values():
                layer.key[:], layer.value[:] = torch.nan, torch.nan
                engine._runner.cache.scrub([0])
            return torch.full_like(logits, torch.nan)

        monkeypatch.setattr(engine._runner, "forward", poison)
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
        monkeypatch.setattr(engine._live["bad"].sequences[0].choice, "append", [].pop)
        outputs = []
        while engine._live:
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
        monkeypatch.setattr(engine._live["17"].sequences[0].choice, "append", [].pop)
        while engine._live:
            outputs += advance(engine)
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
        monkeypatch.setattr(engine._live["bad"].sequences[1].choice, "append", [].pop)
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

        monkeypatch.setattr(engine._runner, "forward", fail)
        outputs: list[RequestOutput] = []
        ended = threading.Event()
        causes: list[BaseException] = []

        def on_fatal(error: BaseException) -> None:
            causes.append(error)
            ended.set()

        engine.submit(request("a"))
        engine.submit(request("b", grammar=GLM_EXAMPLE))
        engine.start(outputs.extend, on_fatal)
        assert ended.wait(10)
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
        engine = make_engine(max_num_seqs=1)
        now = 100.0
        engine._clock = lambda: now
        for name, grammar in (("running", None), ("waiting", None), ("grammar", GLM_EXAMPLE)):
            r = request(name, max_tokens=50, grammar=grammar)
            engine.submit(Request(name, r.prompts, r.sampling, grammar, deadline=105.0))
        engine.submit(request("other", max_tokens=3))
        first = advance(engine)
        assert [o.request_id for o in first] == ["running"]
        now = 105.0
        ended = advance(engine)
        assert {o.request_id for o in ended if o.finished} == {"running", "waiting", "grammar"}
        assert all(isinstance(o.error, DeadlineExceeded) for o in ended if o.finished)
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

    def test_an_abort_tells_what_was_used(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        prompt = tuple(range(1, 41))
        engine.generate([request("before", prompt, max_tokens=1)])
        outputs = steps(engine, request("a", prompt, max_tokens=50), count=6)
        told = sum(len(d.token_ids) for step in outputs for o in step for d in o.deltas)
        used = engine.abort("a")
        assert used is not None
        assert (used.prompt_tokens, used.completion_tokens) == (40, told)
        assert told
        assert 0 < used.cached_tokens < 40
        assert engine.abort("a") is None
        assert engine.abort("unknown") is None

    def test_an_abort_while_the_grammar_is_compiled_leaves_nothing_behind(
        self, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = make_engine()
        compiling: list[Callable[[], None]] = []
        compiled = engine._structured_output._compile
        monkeypatch.setattr(
            engine._structured_output,
            "compile",
            lambda grammar, count, done: compiling.append(lambda: done(compiled(grammar, count))),
        )
        steps(engine, request("a", grammar=GLM_EXAMPLE), count=1)
        engine.abort("a")
        advance(engine)
        for finish in compiling:
            finish()
        advance(engine)
        assert not engine._scheduler.has_work
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
        high = Request("high", low.prompts, low.sampling, priority=3)
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
            assert ended.acquire(timeout=10)
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
        engine._structured_output.compile = lambda *args: None  # type: ignore[method-assign]
        r = request(grammar=GLM_EXAMPLE)
        soon = time.monotonic() + 0.05
        engine.submit(Request("r", r.prompts, r.sampling, GLM_EXAMPLE, deadline=soon))
        output = ended.get(timeout=10)
        engine.stop()
        assert isinstance(output.error, DeadlineExceeded)
        assert time.monotonic() >= soon

    def test_a_long_sleep_is_not_a_long_step(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        now, seen = 0.0, []
        engine._clock = lambda: now
        forward = engine._runner.forward

        def watched(model_input: Any) -> Any:
            seen.append(engine.stats().last_step_at)
            return forward(model_input)

        engine._runner.forward = watched  # type: ignore[method-assign]
        engine.generate([request("a", max_tokens=1)])
        now = 1000.0
        engine.generate([request("b", max_tokens=1)])
        assert seen == [0.0, 1000.0]

    def test_stats_tell_what_is_going_on(self, make_engine: MakeEngine) -> None:
        engine = make_engine(max_num_seqs=1)
        steps(engine, request("a", max_tokens=9), request("b", max_tokens=9), count=3)
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.steps) == (1, 1, 3)
        assert stats.generated_tokens == 3
        assert stats.kv_blocks_used == 2  # 3 prompt and 2 new tokens in blocks of 4
        assert stats.kv_blocks_total > 100
        assert set(stats.step_seconds) == {"schedule", "forward", "mask", "sample", "append"}
