"""``best_of``: the likeliest candidates, and nothing before all have ended."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from completions.contract.job_request import LogprobParams
from completions.contract.sampling import SamplingParams
from tests.workers.engine import greedy
from workers.engine.core.output import ChoiceDelta, Completion
from workers.engine.core.request import Request
from workers.engine.engine import Engine

PROMPTS = greedy.prompt(9), greedy.prompt(21, salt=1)


def ask(n: int, best_of: int | None, scored: bool = True, **fields: Any) -> Request:
    outer = {k: fields.pop(k) for k in ("published", "grammar") if k in fields}
    params = SamplingParams(
        **{"temperature": 1.2, "max_tokens": 14, "seed": 3, "n": n, "best_of": best_of, **fields}
    )
    logprobs = (LogprobParams(2, 0),) * 2 if scored else ()
    return Request(PROMPTS, params, logprobs=logprobs, **outer, request_id="r")


def said(engine: Engine, request: Request) -> Completion:
    [completion] = engine.generate([request])
    assert completion.error is None
    return completion


def mean_logprob(choice: ChoiceDelta) -> float:
    assert choice.logprobs is not None
    return float(choice.logprobs.chosen.mean())


def best(choices: Sequence[ChoiceDelta], n: int) -> list[ChoiceDelta]:
    return sorted(choices, key=mean_logprob, reverse=True)[:n]


def test_the_likeliest_of_all_candidates_come_best_first(engine: Engine) -> None:
    everyone = said(engine, ask(5, None))
    chosen = said(engine, ask(2, 5))
    expected = best(everyone.choices[:5], 2) + best(everyone.choices[5:], 2)
    assert [c.token_ids for c in chosen.choices] == [c.token_ids for c in expected]
    assert [c.text for c in chosen.choices] == [c.text for c in expected]
    assert [c.finish_reason for c in chosen.choices] == [c.finish_reason for c in expected]
    for got, want in zip(chosen.choices, expected, strict=True):
        assert got.logprobs is not None
        assert want.logprobs is not None
        np.testing.assert_allclose(got.logprobs.chosen, want.logprobs.chosen, atol=1e-4)
        assert got.logprobs.offsets == want.logprobs.offsets
    scored = [choice.prompt_logprobs is not None for choice in chosen.choices]
    assert scored == [True, False, True, False]


def test_usage_counts_every_candidate(engine: Engine) -> None:
    everyone = said(engine, ask(5, None, ignore_eos=True))
    chosen = said(engine, ask(1, 5, scored=False, ignore_eos=True))
    assert everyone.usage is not None
    assert chosen.usage is not None
    assert chosen.usage.completion_tokens == everyone.usage.completion_tokens == 2 * 5 * 14
    assert chosen.usage.prompt_tokens == sum(map(len, PROMPTS))
    assert [choice.logprobs for choice in chosen.choices] == [None, None]


def test_as_many_candidates_as_choices_are_all_of_them(engine: Engine) -> None:
    plain, same = said(engine, ask(3, None)), said(engine, ask(3, 3))
    assert [c.token_ids for c in same.choices] == [c.token_ids for c in plain.choices]


def test_forced_tokens_count(engine: Engine) -> None:
    grammar = 'start: ("the quick" | "a" | "naive") " brown fox"'
    everyone = said(engine, ask(6, None, grammar=grammar, max_tokens=20))
    chosen = said(engine, ask(1, 6, scored=False, grammar=grammar, max_tokens=20))
    expected = best(everyone.choices[:6], 1) + best(everyone.choices[6:], 1)
    assert [c.text for c in chosen.choices] == [c.text for c in expected]


def test_published_prompt_scores_are_not_returned_again(engine: Engine) -> None:
    whole = said(engine, ask(2, 4))
    published = {i: tuple(whole.choices[i].token_ids) for i in (0, 1)}
    rest = said(engine, ask(2, 4, published=published))
    assert [c.token_ids for c in rest.choices[:2]] == [[], []]
    assert [c.token_ids for c in rest.choices[2:]] == [c.token_ids for c in whole.choices[2:]]
    assert rest.usage is not None
    assert whole.usage is not None
    assert rest.usage.completion_tokens == whole.usage.completion_tokens


def test_fewer_candidates_than_choices_are_refused() -> None:
    with pytest.raises(ValueError, match="best_of"):
        SamplingParams(n=3, best_of=2)
