"""Given continuations: scored like generated tokens, without sampling, their prompt once."""

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.contract.job_request import LogprobParams, Task
from completions.contract.sampling import SamplingParams
from tests.workers.engine import greedy
from tests.workers.engine.driving import MakeEngine
from tests.workers.engine.sampling.test_logprobs import TOLERANCE, ask, log_softmax, said
from workers.engine.core.choice import GrammarState
from workers.engine.core.continuation import Continuation
from workers.engine.core.output import ChoiceDelta
from workers.engine.core.request import Request
from workers.engine.engine import Engine
from workers.engine.exceptions import GrammarError, InvalidRequest
from workers.engine.text.finish import FinishReason

Ids = tuple[int, ...]


def score(
    *prompts: Ids,
    continuations: tuple[tuple[Ids, ...], ...],
    grammar: str | None = None,
    **fields: object,
) -> Request:
    return Request(
        prompts,
        SamplingParams(max_tokens=0),
        grammar,
        logprobs=(LogprobParams(2, token_ids_logprob=(7,)),) * len(prompts),
        task=Task.SCORE,
        continuations=continuations,
        request_id="score",
        **fields,  # type: ignore[arg-type]
    )


def check(path: Path, prompt: Ids, continuation: Ids, choice: ChoiceDelta) -> None:
    expected = log_softmax(path, [*prompt, *continuation])[len(prompt) - 1 : -1]
    assert choice.token_ids == list(continuation)
    assert choice.finish_reason is FinishReason.LENGTH
    assert choice.logprobs is not None
    rows = np.arange(len(continuation))
    np.testing.assert_allclose(
        choice.logprobs.chosen, expected[rows, list(continuation)], atol=TOLERANCE
    )
    np.testing.assert_allclose(choice.logprobs.named[:, 0], expected[:, 7], atol=TOLERANCE)


ids = st.lists(st.integers(1, 300), min_size=1, max_size=9).map(tuple)


@given(st.lists(st.tuples(ids, st.lists(ids, min_size=1, max_size=4)), min_size=1, max_size=3))
def test_scores_are_those_of_transformers(
    engine: Engine, tiny_llama: Path, groups: list[tuple[Ids, list[Ids]]]
) -> None:
    prompts = tuple(prompt for prompt, _ in groups)
    continuations = tuple(tuple(several) for _, several in groups)
    [completion] = engine.generate([score(*prompts, continuations=continuations)])
    assert completion.error is None
    pairs = [(prompt, each) for prompt, several in groups for each in several]
    for (prompt, continuation), choice in zip(pairs, completion.choices, strict=True):
        check(tiny_llama, prompt, continuation, choice)
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 0
    assert completion.usage.prompt_tokens == sum(map(len, prompts)) + sum(
        len(each) for _, each in pairs
    )


def test_generated_tokens_have_the_scores_they_were_generated_with(engine: Engine) -> None:
    prompt = greedy.prompt(30)
    [made] = said(engine, ask(prompt, logprobs=LogprobParams(2), temperature=1.0, seed=3))
    [completion] = engine.generate([score(prompt, continuations=((tuple(made.token_ids),),))])
    [choice] = completion.choices
    assert choice.text == made.text
    assert choice.logprobs is not None
    assert made.logprobs is not None
    assert choice.logprobs.offsets == made.logprobs.offsets
    np.testing.assert_allclose(choice.logprobs.chosen, made.logprobs.chosen, atol=TOLERANCE)


def test_the_prompt_is_computed_once(make_engine: MakeEngine) -> None:
    engine = make_engine()
    prompt = greedy.prompt(40)
    request = score(prompt, continuations=(tuple((n,) * 3 for n in range(5, 15)),))
    engine.submit(request)
    while engine.live:
        engine.turn()
    assert engine.stats().prefix_cache_hits >= 9 * 36


@pytest.mark.parametrize(("text", "allowed"), [(b"aab", 3), (b"aaa", 2), (b"baa", 0), (b"aabb", 3)])
def test_a_grammar_says_how_far_it_allows_a_continuation(
    engine: Engine, text: bytes, allowed: int
) -> None:
    tokens = engine._intake.vocabulary.token_bytes
    single = {each: id for id, each in enumerate(tokens) if len(each) == 1}
    continuation = tuple(single[bytes((byte,))] for byte in text)
    [completion] = engine.generate(
        [score((5, 6), continuations=((continuation,),), grammar='start: "aab"')]
    )
    [choice] = completion.choices
    assert choice.num_allowed == allowed
    assert choice.logprobs is not None
    assert len(choice.logprobs.chosen) == len(continuation)


def test_a_grammar_is_followed_by_the_thread_that_compiles_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long continuation takes seconds, for which no other request's step waits."""
    threads = []
    follow = Continuation.follow

    def note(self: Continuation, grammar: GrammarState) -> None:
        threads.append(threading.current_thread())
        follow(self, grammar)

    monkeypatch.setattr(Continuation, "follow", note)
    request = score((5, 6), continuations=(((7, 8), (9,)),), grammar='start: "aab"')
    [completion] = engine.generate([request])
    assert [choice.num_allowed for choice in completion.choices] == [0, 0]
    assert len(threads) == 2
    assert threading.current_thread() not in threads


def test_a_grammar_that_cannot_be_followed_ends_its_request_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Continuation, "follow", lambda self, grammar: 1 / 0)
    request = score((5, 6), continuations=(((7, 8),),), grammar='start: "aab"')
    [completion] = engine.generate([request])
    assert isinstance(completion.error, GrammarError)
    [other] = engine.generate([score((5, 6), continuations=(((7, 8),),))])
    assert other.error is None


def test_what_an_earlier_run_delivered_is_not_delivered_again(engine: Engine) -> None:
    request = score(
        (5, 6), continuations=(((7, 8), (9,)),), published={0: (7, 8)}, published_ends={0}
    )
    [completion] = engine.generate([request])
    assert [choice.token_ids for choice in completion.choices] == [[], [9]]


def test_a_prompt_of_the_whole_context_is_scored(make_engine: MakeEngine) -> None:
    engine = make_engine(max_model_len=64)
    prompt = greedy.prompt(64)
    [choice] = said(engine, ask(prompt, logprobs=LogprobParams(1, 0), max_tokens=0))
    assert choice.prompt_logprobs is not None
    assert len(choice.prompt_logprobs.chosen) == 64
    [completion] = engine.generate([score(prompt[:60], continuations=((prompt[60:],),))])
    assert completion.choices[0].logprobs is not None
    np.testing.assert_allclose(
        completion.choices[0].logprobs.chosen, choice.prompt_logprobs.chosen[60:], atol=TOLERANCE
    )


@pytest.mark.parametrize(
    ("continuations", "message"),
    [
        ((), "one entry for every prompt"),
        ((((),),), "is empty"),
        ((((100_000,),),), "outside the vocabulary"),
        ((((5,) * 100_000,),), "maximum context length"),
    ],
)
def test_bad_continuations_are_refused(
    engine: Engine, continuations: tuple[tuple[Ids, ...], ...], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        engine.submit(score((5, 6), continuations=continuations))
