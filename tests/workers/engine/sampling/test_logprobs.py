"""Log probabilities against a float32 log_softmax of transformers over the same tokens."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from completions.contract.job_request import LogprobParams
from completions.contract.sampling import SamplingParams
from tests.workers.engine import greedy
from tests.workers.engine.tiny_models import BLOCK_BYTES
from workers.engine.core.output import ChoiceDelta, Completion, RequestOutput, TokenLogprobs
from workers.engine.core.request import Request
from workers.engine.engine import Engine
from workers.engine.exceptions import InvalidRequest
from workers.engine.sampling.logprobs import Scorer, likeliest
from workers.engine.text.finish import FinishReason

MakeEngine = Callable[..., Engine]

NAMED = (7, 300, 7)


def ask(
    *prompts: Sequence[int], request_id: str = "r", logprobs: Any = None, **fields: Any
) -> Request:
    outer = {k: fields.pop(k) for k in ("grammar", "published") if k in fields}
    params = SamplingParams(**{"temperature": 0, "max_tokens": 9, "ignore_eos": True, **fields})
    wanted = logprobs or LogprobParams(3, 0, NAMED)
    return Request(
        tuple(map(tuple, prompts)),
        params,
        logprobs=(wanted,) * len(prompts),
        **outer,
        request_id=request_id,
    )


def said(engine: Engine, *requests: Request) -> list[ChoiceDelta]:
    completions = engine.generate(requests)
    assert [c.error for c in completions] == [None] * len(requests)
    return [choice for completion in completions for choice in completion.choices]


@cache
def _model(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


@torch.inference_mode()
def log_softmax(path: Path, tokens: Sequence[int]) -> NDArray[np.float32]:
    """[tokens, vocabulary]: row i is about what follows token i."""
    logits = _model(path)(input_ids=torch.tensor([list(tokens)])).logits[0]
    found: NDArray[np.float32] = logits.log_softmax(-1).numpy()
    return found


TOLERANCE = 1e-4
"""Above the error of float32 sums in another order, and far below that of a wrong row."""


def check(got: TokenLogprobs | None, expected: NDArray[np.float32], tokens: Sequence[int]) -> None:
    """``expected`` [tokens, vocabulary] is the distribution that each of ``tokens`` came from."""
    assert got is not None
    assert len(got.chosen) == len(tokens) == len(expected)
    np.testing.assert_allclose(got.chosen, expected[np.arange(len(tokens)), tokens], atol=TOLERANCE)
    descending = -np.sort(-expected, axis=1)[:, : got.top.shape[1]]
    np.testing.assert_allclose(got.top, descending, atol=TOLERANCE)
    np.testing.assert_allclose(
        np.take_along_axis(expected, got.top_ids, axis=1), descending, atol=TOLERANCE
    )
    np.testing.assert_allclose(got.named, expected[:, list(NAMED)], atol=TOLERANCE)


def check_choice(path: Path, prompt: Sequence[int], choice: ChoiceDelta, start: int = 0) -> None:
    """All scores of a choice, against transformers over the whole text."""
    expected = log_softmax(path, [*prompt, *choice.token_ids])
    check(choice.logprobs, expected[len(prompt) - 1 : -1], choice.token_ids)
    scored = choice.prompt_logprobs
    assert scored is not None
    rows = len(prompt) - start
    assert np.isnan(scored.chosen[:1]).all()
    assert (scored.top_ids[:1] == -1).all()
    check(scored.rows(1, rows), expected[start : len(prompt) - 1], prompt[start + 1 :])


class TestOutput:
    def test_they_are_taken_before_penalties_bias_temperature_and_filters(
        self, engine: Engine, tiny_llama: Path
    ) -> None:
        prompt = greedy.prompt(11)
        request = ask(
            prompt, temperature=1.3, top_p=0.9, top_k=30, logit_bias={9: 4.0}, seed=5,
            frequency_penalty=1.0, repetition_penalty=1.2, max_tokens=20,
        )  # fmt: skip
        check_choice(tiny_llama, prompt, said(engine, request)[0])

    def test_alone_and_among_others_that_want_something_else(
        self, engine: Engine, tiny_llama: Path
    ) -> None:
        prompts = [greedy.prompt(3 + 9 * i, salt=i) for i in range(7)]
        requests = [
            Request((prompts[0],), SamplingParams(temperature=1.0, seed=1), request_id="free"),
            *(
                ask(p, request_id=str(k), logprobs=LogprobParams(k, 0, NAMED), seed=k,
                    temperature=k % 2)
                for k, p in enumerate(prompts)
            ),
        ]  # fmt: skip
        silent, *choices = said(engine, *requests)
        assert (silent.logprobs, silent.prompt_logprobs) == (None, None)
        for prompt, choice in zip(prompts, choices, strict=True):
            check_choice(tiny_llama, prompt, choice)
            [alone] = said(engine, ask(prompt, logprobs=LogprobParams(2, 0, NAMED)))
            check_choice(tiny_llama, prompt, alone)

    def test_what_is_not_asked_for_is_not_there(self, engine: Engine) -> None:
        [choice] = said(engine, ask((5, 6), logprobs=LogprobParams()))
        assert choice.prompt_logprobs is None
        assert choice.logprobs is not None
        assert choice.logprobs.top.shape == choice.logprobs.named.shape == (9, 0)

    def test_each_forced_token_has_its_own(self, engine: Engine, tiny_llama: Path) -> None:
        grammar = 'start: /[a-c]/ "the quick brown fox"'
        [jumped] = said(
            engine,
            Request(((5, 6),), SamplingParams(temperature=0), grammar, request_id="r"),
        )
        [choice] = said(engine, ask((5, 6), grammar=grammar, max_tokens=16))
        assert choice.token_ids == jumped.token_ids
        check_choice(tiny_llama, (5, 6), choice)

    @pytest.mark.parametrize("prompt_length", [1, 6])
    def test_offsets_count_the_characters_before_each_token(
        self, engine: Engine, tokenizer: Tokenizer, prompt_length: int
    ) -> None:
        grammar = 'start: "naïve 東京 😀" /[a-z]{3}/ "é"'
        prompt = greedy.prompt(prompt_length)
        [choice] = said(engine, ask(prompt, grammar=grammar, max_tokens=60))
        assert choice.logprobs is not None
        assert choice.finish_reason is FinishReason.STOP
        before = [choice.token_ids[:i] for i in range(len(choice.token_ids))]
        texts = [tokenizer.decode(ids, skip_special_tokens=False) for ids in before]
        assert choice.logprobs.offsets == [len(text.rstrip("\ufffd")) for text in texts]

    def test_an_end_token_stands_behind_the_text(self, engine: Engine) -> None:
        [choice] = said(engine, ask((5, 6), ignore_eos=False, logit_bias={0: 100.0}))
        assert choice.logprobs is not None
        assert (choice.token_ids, choice.text, choice.logprobs.offsets) == ([0], "", [0])


class TestPrompt:
    @pytest.mark.parametrize("start", [0, 1, 22, 23, 24, 49, 50])
    def test_from_any_position_across_chunks(
        self, engine: Engine, tiny_llama: Path, start: int
    ) -> None:
        prompt = greedy.prompt(50, salt=start)
        [choice] = said(engine, ask(prompt, logprobs=LogprobParams(2, start, NAMED)))
        check_choice(tiny_llama, prompt, choice, start)

    @pytest.mark.parametrize("length", [1, 2, 30])
    def test_without_any_output(self, engine: Engine, tiny_llama: Path, length: int) -> None:
        prompt = greedy.prompt(length)
        [completion] = engine.generate([ask(prompt, max_tokens=0)])
        [choice] = completion.choices
        assert (choice.token_ids, choice.text) == ([], "")
        assert choice.finish_reason is FinishReason.LENGTH
        assert choice.logprobs is None
        assert choice.prompt_logprobs is not None
        expected = log_softmax(tiny_llama, prompt)[:-1]
        check(choice.prompt_logprobs.rows(1, length), expected, prompt[1:])
        assert completion.usage is not None
        assert completion.usage.completion_tokens == 0
        assert completion.usage.prompt_tokens == length

    def test_neither_prompt_nor_output_computes_nothing(self, engine: Engine) -> None:
        steps = engine.stats().steps
        params = SamplingParams(max_tokens=0, n=2)
        choices = said(engine, Request(((5, 6), (7,)), params, request_id="r"))
        assert [c.finish_reason for c in choices] == [FinishReason.LENGTH] * 4
        assert engine.stats().steps == steps

    def test_a_grammar_that_allows_nothing_but_the_end(self, engine: Engine) -> None:
        choices = said(engine, ask(greedy.prompt(30), grammar='start: ""', n=2))
        assert [c.finish_reason for c in choices] == [FinishReason.STOP] * 2
        assert choices[0].prompt_logprobs is not None
        assert np.isfinite(choices[0].prompt_logprobs.chosen[1:]).all()

    @pytest.mark.represented_by("0")
    @pytest.mark.parametrize("start", [0, 5, 17, 40])
    def test_what_is_cached_is_computed_again_only_as_far_as_needed(
        self, make_engine: MakeEngine, tiny_llama: Path, start: int
    ) -> None:
        engine = make_engine()
        prompt = greedy.prompt(40)
        engine.generate([Request((prompt,), request_id="warm")])
        [completion] = engine.generate([ask(prompt, logprobs=LogprobParams(2, start, NAMED))])
        check_choice(tiny_llama, prompt, completion.choices[0], start)
        assert completion.usage is not None
        assert completion.usage.cached_tokens == min(start, 39) // 4 * 4

    def test_choices_of_a_prompt_share_it(self, make_engine: MakeEngine, tiny_llama: Path) -> None:
        engine = make_engine()
        prompts = greedy.prompt(41), greedy.prompt(33, salt=1)
        request = ask(*prompts, n=3, temperature=1.0, seed=1)
        outputs = run(engine, request)
        completion = Completion.begin(request)
        for output in outputs:
            completion.add(output)
        choices = completion.choices
        assert [choice.cached_tokens for choice in choices] == [0, 40, 40, 0, 32, 32]
        for i in (0, 3):
            check_choice(tiny_llama, prompts[i // 3], choices[i])
            for sibling in choices[i + 1 : i + 3]:
                assert sibling.prompt_logprobs is None
                expected = log_softmax(tiny_llama, [*prompts[i // 3], *sibling.token_ids])
                check(sibling.logprobs, expected[len(prompts[i // 3]) - 1 : -1], sibling.token_ids)
        order = [delta.index for output in outputs for delta in output.deltas]
        assert [order.index(0) < order.index(i) for i in (1, 2)] == [True, True]
        assert [order.index(3) < order.index(i) for i in (4, 5)] == [True, True]

    @pytest.mark.wide
    def test_after_preemption(self, make_engine: MakeEngine, tiny_llama: Path) -> None:
        engine = make_engine(kv_cache_bytes=24 * BLOCK_BYTES)
        prompts = [greedy.prompt(15 + 3 * i, salt=i) for i in range(8)]
        requests = [ask(p, request_id=str(i), max_tokens=40) for i, p in enumerate(prompts)]
        choices = said(engine, *requests)
        assert engine.stats().preemptions > 5
        for prompt, choice in zip(prompts, choices, strict=True):
            check_choice(tiny_llama, prompt, choice)

    def test_each_prompt_of_a_request_has_its_own_wishes(
        self, engine: Engine, tiny_llama: Path
    ) -> None:
        prompts = greedy.prompt(7), greedy.prompt(9), greedy.prompt(30)
        fields = None, LogprobParams(1, 4, NAMED), LogprobParams(2, -1, NAMED)
        params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
        first, second, third = said(
            engine, Request(prompts, params, logprobs=fields, request_id="r")
        )
        assert first.logprobs is first.prompt_logprobs is third.prompt_logprobs is None
        check_choice(tiny_llama, prompts[1], second, start=4)
        expected = log_softmax(tiny_llama, [*prompts[2], *third.token_ids])
        check(third.logprobs, expected[29:-1], third.token_ids)


class TestResumption:
    @pytest.mark.parametrize("cut", [0, 1, 6, 9])
    def test_published_scores_are_not_returned_again(
        self, engine: Engine, tiny_llama: Path, cut: int
    ) -> None:
        prompt = greedy.prompt(26)
        [whole] = said(engine, ask(prompt))
        published = {0: tuple(whole.token_ids[:cut])}
        [rest] = said(engine, ask(prompt, published=published))
        assert rest.token_ids == whole.token_ids[cut:]
        assert rest.prompt_logprobs is None
        if cut == 9:
            assert rest.logprobs is None
            return
        expected = log_softmax(tiny_llama, [*prompt, *whole.token_ids])[25 + cut : -1]
        check(rest.logprobs, expected, rest.token_ids)
        assert whole.logprobs is not None
        assert rest.logprobs is not None
        assert rest.logprobs.offsets == whole.logprobs.offsets[cut:]


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ((LogprobParams(0, 3),), "at most the prompt's 2 tokens"),
            ((LogprobParams(token_ids_logprob=(400,)),), "token id 400 is outside"),
            ((None, None), "for every prompt"),
        ],
    )
    def test_what_the_model_cannot_do(self, engine: Engine, fields: Any, message: str) -> None:
        with pytest.raises(InvalidRequest, match=message):
            engine.generate([Request(((5, 6),), logprobs=fields, request_id="r")])

    @pytest.mark.parametrize("nonsense", [{"top_logprobs_num": 21}, {"top_logprobs_num": -1},
                                          {"token_ids_logprob": (1,) * 129}])  # fmt: skip
    def test_nonsense_is_refused_by_name(self, nonsense: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=next(iter(nonsense))):
            LogprobParams(**nonsense)


@given(
    st.integers(1, 700).flatmap(
        lambda size: st.tuples(
            st.lists(
                st.lists(st.integers(-3, 3), min_size=size, max_size=size), min_size=1, max_size=3
            ),
            st.integers(0, min(size, 20)),
        )
    )
)
def test_the_likeliest_come_in_order_and_equal_ones_by_id(
    case: tuple[list[list[int]], int],
) -> None:
    rows, count = case
    values, ids = likeliest(torch.tensor(rows, dtype=torch.float32), count)
    expected = [sorted(range(len(row)), key=lambda i: (-row[i], i))[:count] for row in rows]
    assert ids.tolist() == expected
    assert values.tolist() == [
        [row[i] for i in best] for row, best in zip(rows, expected, strict=True)
    ]


def test_what_is_impossible_is_far_below_all_else() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 0.0, -torch.inf]])
    found = Scorer().score(logits, torch.tensor([1]), LogprobParams(3, -1, (3, 0)))
    half = pytest.approx(np.log(0.5))
    assert found.chosen.tolist() == [-9999.0]
    assert found.top.tolist() == [[half, half, -9999.0]]
    assert found.top_ids.tolist() == [[0, 2, 1]]
    assert found.named.tolist() == [[-9999.0, half]]


def run(engine: Engine, request: Request) -> list[RequestOutput]:
    """What the engine hands out, step by step."""
    engine.submit(request)
    outputs: list[RequestOutput] = []
    while not (outputs and outputs[-1].finished):
        outputs += engine.turn()
    return outputs
