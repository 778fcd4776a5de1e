import json
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from completions.contract.sampling import SamplingParams
from tests.workers.engine import greedy
from tests.workers.engine.driving import (
    EOS,
    GLM_EXAMPLE,
    MakeEngine,
    advance,
    choice,
    request,
    run,
    steps,
)
from workers.engine.core.output import ChoiceDelta
from workers.engine.core.request import Request
from workers.engine.engine import Engine
from workers.engine.exceptions import (
    GrammarError,
)
from workers.engine.text.finish import FinishReason


class TestGreedy:
    """Token for token what transformers generates."""

    @pytest.mark.represented_by("24", "49")
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
        while "late" in engine.live:
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
        [whole] = run(engine, Request(((5, 6), (7, 8, 9)), params, request_id="r"))
        assert [c.index for c in whole.choices] == [0, 1, 2, 3, 4, 5]
        assert len({tuple(c.token_ids) for c in whole.choices}) == 6
        [first] = run(engine, Request(((5, 6),), params, request_id="r"))
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
        [completion] = run(engine, Request(((5, 6),), params, grammar, request_id="r"))
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
            engine.receive(wait=True)
        engine.step()
        broken: Any = engine.live["bad"].sequences[0].choice.grammar
        broken.matcher.consume_token(tokenizer.token_to_id("x"))
        outputs = []
        while engine.live:
            outputs += advance(engine)
        ended = {o.request_id: o for o in outputs if o.finished}
        assert isinstance(ended["bad"].error, GrammarError)
        assert ended["good"].error is None
        assert "".join(
            d.text for o in outputs if o.request_id == "good" for d in o.deltas
        ).isdigit()
        assert engine.stats().kv_blocks_used == 0

    @pytest.mark.wide
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
