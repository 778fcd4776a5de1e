"""Processed log probabilities and the support of draws, recomputed from the ids with transformers
in float32."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from completions.contract.job_request import LogprobParams, LogprobsMode
from tests.workers.engine import greedy
from tests.workers.engine.rows import row
from tests.workers.engine.sampling.test_logprobs import ask, log_softmax, said
from workers.engine.core.logprob_record import LogprobRecord
from workers.engine.core.output import ChoiceDelta
from workers.engine.core.step import lay_rows
from workers.engine.engine import Engine
from workers.engine.sampling.distributions import Distributions, Drawn

TOLERANCE = 1e-3
LISTED = 400
"""More than the vocabulary has."""
PROCESSED = LogprobParams(2, mode=LogprobsMode.PROCESSED, support_ids=LISTED)
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.6, "top_k": 7},
    {"temperature": 1.4, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.2},
    {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 1.0, "allowed_token_ids": (7, 8, 9, 10), "top_k": 3},
    {"temperature": 1.0, "bad_words": ((7,), (8, 9)), "min_tokens": 2},
    {"temperature": 1.2, "logit_bias": {9: 3.0}, "top_p": 0.9},
    {"temperature": 0.0},
]
GRAMMARS = (None, "start: /[a-d]{9,20}/", 'start: "abc" /[e-h]+/ "xyz"')


def process(raw: NDArray[np.float32], params: dict[str, Any]) -> NDArray[np.float64]:
    """The weights at each position before a filter, relative to all of them: bias and
    temperature."""
    logits = raw.astype(np.float64)
    for token_id, bias in params.get("logit_bias", {}).items():
        logits[:, token_id] += bias
    logits /= params["temperature"] or 1.0
    logits -= logits.max(axis=1, keepdims=True)
    weights: NDArray[np.float64] = np.exp(logits)
    return weights / weights.sum(axis=1, keepdims=True)


def check(path: Path, prompt: tuple[int, ...], choice: ChoiceDelta, params: dict[str, Any]) -> None:
    """Recompute each processed log probability from the ids of its support."""
    assert choice.logprobs is not None
    assert len(choice.logprobs.support) == len(choice.token_ids)
    raw = log_softmax(path, [*prompt, *choice.token_ids])[len(prompt) - 1 : -1]
    rows = zip(process(raw, params), choice.token_ids, choice.logprobs.chosen, strict=True)
    for (weights, token_id, chosen), support in zip(rows, choice.logprobs.support, strict=True):
        assert support.size == len(support.ids) == len(set(support.ids))
        assert token_id in support.ids
        mass = weights[support.ids].sum()
        assert support.log_mass == pytest.approx(np.log(mass), abs=TOLERANCE)
        assert chosen == pytest.approx(np.log(weights[token_id] / mass), abs=TOLERANCE)


@given(
    st.sampled_from(SETTINGS),
    st.sampled_from(GRAMMARS),
    st.integers(0, 2**31),
    st.integers(1, 12),
)
def test_they_are_what_transformers_computes_over_the_support(
    engine: Engine,
    tiny_llama: Path,
    params: dict[str, Any],
    grammar: str | None,
    seed: int,
    length: int,
) -> None:
    prompt = greedy.prompt(length)
    request = ask(prompt, logprobs=PROCESSED, grammar=grammar, seed=seed, **params)
    [choice] = said(engine, request)
    check(tiny_llama, prompt, choice, params)


def test_what_filters_and_bans_leave(engine: Engine) -> None:
    [few] = said(engine, ask((5, 6), logprobs=PROCESSED, temperature=1.0, top_k=7))
    assert few.logprobs is not None
    assert {support.size for support in few.logprobs.support} == {7}
    allowed = (7, 8, 9)
    [choice] = said(
        engine,
        ask((5, 6), logprobs=PROCESSED, temperature=1.0, allowed_token_ids=allowed,
            bad_words=((8,),)),
    )  # fmt: skip
    assert choice.logprobs is not None
    assert {tuple(sorted(support.ids)) for support in choice.logprobs.support} == {(7, 9)}


def test_a_token_outside_the_support_has_the_lowest_value(engine: Engine) -> None:
    params = LogprobParams(3, -1, (7, 9), mode=LogprobsMode.PROCESSED)
    [choice] = said(engine, ask((5, 6), logprobs=params, temperature=1.0, allowed_token_ids=(7, 8)))
    assert choice.logprobs is not None
    assert (choice.logprobs.named[:, 0] <= 0).all()
    assert (choice.logprobs.named[:, 0] > -100).all()
    assert (choice.logprobs.named[:, 1] == -9999).all()
    assert (choice.logprobs.top[:, 2] == -9999).all()
    assert choice.logprobs.support == []


@pytest.mark.represented_by("0.0")
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_asking_changes_no_token_and_no_raw_score(engine: Engine, temperature: float) -> None:
    params = {"temperature": temperature, "top_p": 0.9, "seed": 3, "max_tokens": 30}
    [plain] = said(engine, ask((5, 6, 7), logprobs=LogprobParams(2), **params))
    [asked] = said(engine, ask((5, 6, 7), logprobs=LogprobParams(2, support_ids=0), **params))
    [processed] = said(engine, ask((5, 6, 7), logprobs=PROCESSED, **params))
    assert plain.token_ids == asked.token_ids == processed.token_ids
    assert plain.logprobs is not None
    assert asked.logprobs is not None
    # Other drafts make steps of other sizes, which torch rounds otherwise.
    np.testing.assert_allclose(plain.logprobs.chosen, asked.logprobs.chosen, rtol=0, atol=1e-5)
    assert all(support.ids == [] for support in asked.logprobs.support)


def test_candidates_are_compared_by_raw_scores(engine: Engine) -> None:
    params = {"temperature": 1.0, "seed": 4, "n": 2, "best_of": 5, "max_tokens": 6}
    raw = said(engine, ask((5, 6, 7), logprobs=LogprobParams(), **params))
    processed = said(engine, ask((5, 6, 7), logprobs=PROCESSED, **params))
    assert [each.token_ids for each in raw] == [each.token_ids for each in processed]


def test_the_support_of_an_overruled_draw_names_the_token_that_took_its_place() -> None:
    drawn = Drawn(torch.tensor([1.0, 0.5, 0.2, 0.1]), None).keep_only(3)
    token_ids = torch.tensor([3])
    seq = row()
    seq.logprobs = LogprobRecord(LogprobParams(mode=LogprobsMode.PROCESSED, support_ids=4))
    scored = Distributions([*enumerate(lay_rows([seq]))], torch.device("cpu"))
    logits = drawn.weights.log()[None]
    [scores] = scored.score({0: drawn}, logits, torch.zeros(1), token_ids, [0.0]).values()
    [support] = scores.support
    assert (support.size, support.ids) == (1, [3])
