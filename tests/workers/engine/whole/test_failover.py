from itertools import chain
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tokenizers import Tokenizer

from completions.contract.sampling import SamplingParams
from tests.workers.engine.driving import GLM_EXAMPLE, advance, choice, request, run, steps
from workers.engine.core.output import ChoiceDelta
from workers.engine.core.request import Request
from workers.engine.engine import Engine
from workers.engine.exceptions import (
    GrammarError,
)
from workers.engine.text.finish import FinishReason


class TestFailover:
    """A run that continues after published tokens returns the remaining tokens, and only those."""

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
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
        whole = Request(((5, 6, 7),), SamplingParams(**params), grammar, request_id="r")
        parts: list[list[ChoiceDelta]] = [[], []]
        engine.submit(whole)
        while engine.live:
            for output in advance(engine):
                for delta in output.deltas:
                    parts[delta.index].append(delta)
        published = [
            [d for d in part if d.token_ids][:cut] for part, cut in zip(parts, cuts, strict=True)
        ]
        ids = {i: tuple(t for d in part for t in d.token_ids) for i, part in enumerate(published)}
        broken = Request(whole.prompts, whole.sampling, grammar, published=ids, request_id="r")
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
            ((5, 6, 7),),
            SamplingParams(max_tokens=6, temperature=0, ignore_eos=True),
            published={0: tuple(whole.token_ids)},
            request_id="r",
        )
        before = engine.stats().steps
        assert choice(engine, broken) == ChoiceDelta(0, [], "", FinishReason.LENGTH)
        assert engine.stats().steps == before

    def test_an_end_that_was_published_is_not_emitted_again(self, engine: Engine) -> None:
        params = SamplingParams(max_tokens=6, temperature=1, seed=3, n=3, ignore_eos=True)
        whole = Request(((5, 6, 7),), params, request_id="r")
        [expected] = run(engine, whole)
        published = {
            i: tuple(c.token_ids[: 6 - 2 * (i == 1)]) for i, c in enumerate(expected.choices)
        }
        again = replace(whole, published=published, published_ends=frozenset({0}))
        outputs = list(chain.from_iterable(steps(engine, again, count=9)))
        seen = [delta for output in outputs for delta in output.deltas]
        assert [delta.index for delta in seen if delta.finish_reason] == [2, 1]
        assert {delta.index for delta in seen} == {1, 2}
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
            ((5,),),
            SamplingParams(),
            GLM_EXAMPLE,
            published={0: (tokenizer.token_to_id("x"),)},
            request_id="r",
        )
        [completion] = run(engine, broken)
        assert isinstance(completion.error, GrammarError)
