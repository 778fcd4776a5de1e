"""Tokens that a grammar forces are appended without a step each, and change nothing but the time.

The reference is the same engine, which samples at every position, where the mask leaves nothing
but the forced token.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace
from tokenizers import Tokenizer

from completions.contract.job_request import LogprobParams
from completions.contract.sampling import SamplingParams
from tests.representatives import stand_for_all
from tests.workers.engine import greedy
from workers.engine.backends.cpu import runner
from workers.engine.core.output import ChoiceDelta, Completion
from workers.engine.core.request import Request
from workers.engine.engine import Engine
from workers.engine.exceptions import GrammarError
from workers.engine.text.finish import FinishReason

MakeEngine = Callable[..., Engine]

PROMPT = (5, 6, 7)
WORDS = ["the", "quick", "fox,", "stop string;", "naïve", "東京", '"tags": [12', "3456]\n\t", "'s"]
FIXED = "the quick brown fox jumps over the lazy dog"
MIXED = f'start: /[a-c]/ " {FIXED} " /[0-9]/ "; the end of the text"'

a_text = st.lists(st.sampled_from(WORDS), min_size=1, max_size=9).map(" ".join)
"""Never empty: words, digits, spaces, quotes and characters of several tokens."""

_CHOICES = {
    "/[a-c]/": "[a-c]",
    "/[0-9]{1,4}/": "[0-9]{1,4}",
    '("yes" | "yellow" | "no")': "(yes|yellow|no)",
    '("opt ")?': "(opt )?",
    '("x" | "y")*': "[xy]*",
}


@st.composite
def a_grammar(draw: st.DrawFn) -> tuple[str, str]:
    """Fixed texts and choices in turn, as Lark and as a regular expression."""
    lark, pattern = [], []
    for _ in range(draw(st.integers(1, 3))):
        text = draw(a_text)
        lark.append(json.dumps(text, ensure_ascii=False))
        pattern.append(re.escape(text))
        choice = draw(st.sampled_from(sorted(_CHOICES)))
        lark.append(choice)
        pattern.append(_CHOICES[choice])
    return "start: " + " ".join(lark), "".join(pattern)


def request(request_id: str = "r", grammar: str = MIXED, **params: Any) -> Request:
    sampling = SamplingParams(**{"temperature": 0, "max_tokens": 120, **params})
    return Request((PROMPT,), sampling, grammar, request_id=request_id)


def run(engine: Engine, request: Request) -> ChoiceDelta:
    [completion] = engine.generate([request])
    assert completion.error is None
    return completion.choices[0]


def run_every_position(engine: Engine, request: Request) -> ChoiceDelta:
    """Without a jump, but the same engine otherwise."""
    engine.submit(request)
    [seq] = engine.live[request.request_id].sequences
    seq.rules = dataclasses.replace(seq.rules, every_position=True)
    whole = ChoiceDelta(0)
    while engine.live:
        for output in engine.turn():
            assert output.error is None
            for delta in output.deltas:
                whole.token_ids += delta.token_ids
                whole.text += delta.text
                whole.finish_reason, whole.matched_stop = delta.finish_reason, delta.matched_stop
    return whole


def literal(text: str) -> str:
    return "start: " + json.dumps(text, ensure_ascii=False)


class TestForcedText:
    @given(text=a_text)
    def test_it_ends_without_a_forward(
        self, engine: Engine, tokenizer: Tokenizer, text: str
    ) -> None:
        steps = engine.stats().steps
        [completion] = engine.generate([request(grammar=literal(text), max_tokens=200)])
        assert completion.choices[0].text == text
        assert completion.choices[0].token_ids == tokenizer.encode(text).ids
        assert completion.choices[0].finish_reason == FinishReason.STOP
        assert completion.choices[0].matched_stop is None
        assert completion.usage is not None
        assert completion.usage.completion_tokens == len(tokenizer.encode(text).ids)
        assert engine.stats().steps == steps
        assert engine.stats().kv_blocks_used == 0

    def test_without_jump_forward_the_model_says_the_same(self, make_engine: MakeEngine) -> None:
        off = make_engine(jump_forward=False)
        assert run(off, request(grammar=literal(FIXED))).text == FIXED
        assert off.stats().forced_tokens == 0
        assert off.stats().steps > 8

    def test_a_run_costs_one_step_and_is_counted(self, make_engine: MakeEngine) -> None:
        engine = make_engine(max_num_batched_tokens=512)
        said = run(engine, request())
        stats = engine.stats()
        assert stats.steps == 2  # one for each character class
        assert stats.generated_tokens == len(said.token_ids)
        assert stats.forced_tokens == len(said.token_ids) - 2

    @pytest.mark.parametrize("resumed", [False, True])
    @pytest.mark.parametrize("scored", [False, True])
    def test_forced_tokens_are_counted_alike_everywhere(
        self, make_engine: MakeEngine, scored: bool, resumed: bool
    ) -> None:
        engine = make_engine(speculation=False)
        asked = replace(request(), report_constraint=True)
        whole = run(engine, asked)
        already = tuple(whole.token_ids[:4]) if resumed else ()
        before = engine.stats()
        scores = (LogprobParams(),) if scored else ()
        [again] = engine.generate([replace(asked, logprobs=scores, published={0: already})])
        expected = len(whole.token_ids) - 2  # all but the character classes
        assert again.usage is not None
        assert again.choices[0].effect is not None
        assert again.usage.forced_tokens == again.choices[0].effect.forced_tokens == expected
        after = engine.stats()
        generated = after.generated_tokens - before.generated_tokens
        assert generated == len(whole.token_ids) - len(already)
        steps = again.choices[0].effect.steps
        assert after.forced_tokens - before.forced_tokens == generated - steps

    def test_a_choice_that_ended_before_generates_nothing(self, make_engine: MakeEngine) -> None:
        engine = make_engine(speculation=False)
        ended = run(engine, request())
        before = engine.stats().generated_tokens
        asked = replace(request(), published={0: tuple(ended.token_ids)}, return_hidden_states=True)
        asked = replace(asked, report_constraint=True)
        again = run(engine, asked)
        assert again.effect is not None
        assert again.effect.steps == 0
        assert engine.stats().generated_tokens == before

    def test_a_forced_beginning_is_streamed_while_the_prompt_is_computed(
        self, make_engine: MakeEngine
    ) -> None:
        engine = make_engine(max_num_batched_tokens=9)
        params = SamplingParams(max_tokens=20)
        engine.submit(
            Request(
                (greedy.prompt(40),),
                params,
                'start: "the quick " /[a-c]/',
                request_id="r",
            )
        )
        while not engine.scheduler.has_work:
            engine.receive(wait=True)
        [output] = engine.step()
        assert output.deltas[0].text.startswith("the quick")
        assert not output.finished

    def test_special_tokens_by_name_are_forced_and_by_spelling_are_text(
        self, engine: Engine, tokenizer: Tokenizer
    ) -> None:
        named = run(engine, request(grammar='start: "a" <tool> "b"', skip_special_tokens=False))
        spelled = run(engine, request(grammar='start: "a<tool>b"', skip_special_tokens=False))
        assert named.text == spelled.text == "a<tool>b"
        assert tokenizer.token_to_id("<tool>") in named.token_ids
        assert tokenizer.token_to_id("<tool>") not in spelled.token_ids


class TestSameAsSampled:
    @pytest.mark.wide
    @given(
        grammar=a_grammar(),
        params=st.fixed_dictionaries(
            {
                "max_tokens": st.integers(1, 60),
                "temperature": st.sampled_from([0.0, 1.5]),
                "seed": st.integers(0, 9),
                "stop": st.lists(st.sampled_from(["fox", "e ", "in", "東", "stop s"]), max_size=2),
                "stop_token_ids": st.lists(st.integers(0, 399), max_size=40),
                "frequency_penalty": st.sampled_from([0.0, 1.0]),
                "ignore_eos": st.booleans(),
            }
        ),
        early=st.floats(0, 1),
    )
    def test_every_rule_of_stopping(
        self, engine: Engine, grammar: tuple[str, str], params: dict[str, Any], early: float
    ) -> None:
        params = {key: tuple(v) if isinstance(v, list) else v for key, v in params.items()}
        min_tokens = int(early * params["max_tokens"])
        both = [
            each(engine, request(grammar=grammar[0], min_tokens=min_tokens, **params))
            for each in (run, run_every_position)
        ]
        assert both[0] == both[1]

    @given(grammar=a_grammar(), temperature=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 99))
    def test_what_is_said_is_in_the_grammar(
        self, engine: Engine, grammar: tuple[str, str], temperature: float, seed: int
    ) -> None:
        said = run(
            engine, request(grammar=grammar[0], temperature=temperature, seed=seed, max_tokens=300)
        )
        assume(said.finish_reason == FinishReason.STOP)
        assert re.fullmatch(grammar[1], said.text)

    @pytest.mark.wide
    @given(grammar=a_grammar(), seed=st.integers(0, 9), cut=st.floats(0, 1))
    def test_a_run_resumed_after_any_prefix_goes_on_alike(
        self, engine: Engine, grammar: tuple[str, str], seed: int, cut: float
    ) -> None:
        params = SamplingParams(max_tokens=60, temperature=1.0, seed=seed)
        [whole] = engine.generate([Request((PROMPT,), params, grammar[0], request_id="r")])
        tokens = whole.choices[0].token_ids
        published = tuple(tokens[: int(cut * len(tokens))])
        [rest] = engine.generate(
            [
                Request(
                    (PROMPT,),
                    params,
                    grammar[0],
                    published={0: published},
                    request_id="r",
                )
            ]
        )
        assert [*published, *rest.choices[0].token_ids] == tokens
        assert rest.usage is not None
        assert whole.usage is not None
        assert rest.usage.completion_tokens == whole.usage.completion_tokens
        assert rest.choices[0].finish_reason == whole.choices[0].finish_reason

    @pytest.mark.represented_by("9-100")
    @pytest.mark.parametrize(
        ("budget", "short"),
        stand_for_all([(9, 100), (24, 3), (512, 0)], product([9, 24, 512], [0, 3, 100])),
    )
    def test_however_the_step_is_laid_out(
        self,
        engine: Engine,
        make_engine: MakeEngine,
        monkeypatch: pytest.MonkeyPatch,
        short: int,
        budget: int,
    ) -> None:
        monkeypatch.setattr(runner, "_SHORT_CHUNK", short)
        requests = [
            request(str(i), f"start: /[a-z]{{{i + 1}}}/ {text} /[a-z0-9]{{9}}/", temperature=1.0)
            for i, text in enumerate(['"yes "', f'"{FIXED}"', '" a"', '"12 "', '" naïve café "'])
        ]
        together = make_engine(max_num_batched_tokens=budget).generate(requests)
        for single, completion in zip(requests, together, strict=True):
            assert completion.choices[0] == run_every_position(engine, single)


class TestLimits:
    def test_max_tokens_cuts_inside_a_run(self, engine: Engine) -> None:
        whole = run(engine, request()).token_ids
        for cap in range(1, len(whole)):
            cut = run(engine, request(max_tokens=cap))
            assert cut.token_ids == whole[:cap]
            assert cut.finish_reason == FinishReason.LENGTH
        assert run(engine, request(max_tokens=len(whole))).finish_reason == FinishReason.STOP

    def test_the_context_ends_inside_a_run(self, make_engine: MakeEngine) -> None:
        cut = run(make_engine(max_model_len=9), request())
        assert (len(cut.token_ids), cut.finish_reason) == (9 - len(PROMPT), FinishReason.LENGTH)

    def test_a_stop_string_inside_a_run(self, engine: Engine) -> None:
        cut = run(engine, request(stop=("x jum",)))
        assert cut.text.endswith(" the quick brown fo")
        assert (cut.finish_reason, cut.matched_stop) == (FinishReason.STOP, "x jum")

    def test_a_stop_id_inside_a_run_waits_for_min_tokens(
        self, engine: Engine, tokenizer: Tokenizer
    ) -> None:
        whole = run(engine, request()).token_ids
        [stop] = tokenizer.encode(" the").ids
        first, second, *_ = (i for i, token in enumerate(whole) if token == stop)
        for min_tokens, length in ((0, first + 1), (first, first + 1), (first + 1, first + 1),
                                   (first + 2, second + 1)):  # fmt: skip
            cut = run(engine, request(stop_token_ids=(stop,), min_tokens=min_tokens))
            assert (len(cut.token_ids), cut.matched_stop) == (length, stop)

    def test_a_forced_end_of_sequence_ends_the_choice(self, engine: Engine) -> None:
        steps = engine.stats().steps
        ended = run(engine, request(grammar='start: "a" <|end|>'))
        assert (ended.text, ended.matched_stop) == ("a", ended.token_ids[-1])
        assert engine.stats().steps == steps


class TestNeighbours:
    def test_choices_and_requests_are_alike_alone_and_together(self, engine: Engine) -> None:
        params = SamplingParams(max_tokens=60, temperature=1.0, n=3, seed=4)
        grammars = [MIXED, None, 'start: /[0-9]+/ " and the end"']
        requests = [
            Request((PROMPT,), params, g, request_id=str(i)) for i, g in enumerate(grammars)
        ]
        together = [c.choices for c in engine.generate(requests)]
        assert together == [engine.generate([r])[0].choices for r in requests]

    def test_a_fault_inside_a_run_ends_its_own_request(
        self, make_engine: MakeEngine, tiny_llama: Path
    ) -> None:
        engine = make_engine()
        free = Request(
            (greedy.prompt(6),),
            SamplingParams(temperature=0, max_tokens=12),
            request_id="free",
        )
        for each in (request("bad"), request("good"), free):
            engine.submit(each)
        while engine.stats().waiting < 3:
            engine.receive(wait=True)
        broken: Any = engine.live["bad"].sequences[0].choice.grammar
        consume, consumed = broken.consume, []

        def fail_in_the_run(token_id: int) -> bool:
            consumed.append(token_id)
            if len(consumed) == 4:
                raise GrammarError
            return bool(consume(token_id))

        broken.consume = fail_in_the_run
        completions = _drain(engine, ["bad", "good", "free"])
        assert isinstance(completions["bad"].error, GrammarError)
        assert completions["good"].choices[0] == run(make_engine(), request())
        assert completions["free"].choices[0].token_ids == greedy.generate(
            tiny_llama, greedy.prompt(6), 12
        )
        assert engine.stats().kv_blocks_used == 0


def _drain(engine: Engine, names: Sequence[str]) -> dict[str, Completion]:
    completions = {name: Completion(name, [ChoiceDelta(0)]) for name in names}
    while engine.live:
        for output in engine.turn():
            completion = completions[output.request_id]
            completion.error = output.error
            for delta in output.deltas:
                [choice] = completion.choices
                choice.token_ids += delta.token_ids
                choice.text += delta.text
                choice.finish_reason = delta.finish_reason
    return completions
