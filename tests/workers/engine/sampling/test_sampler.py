import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.workers.engine.rows import row
from workers.engine.grammar.mask import GrammarMask
from workers.engine.sampling.sampler import Filter, Sampler, draw, draw_filtered

VOCABULARY = 300


def sample(logits: Tensor, *rows: Any) -> list[int]:
    return Sampler().sample(logits.clone(), list(rows)).token_ids


def filters(*rows: tuple[int, float, float]) -> Filter:
    top_k, top_p, min_p = zip(*rows, strict=True)
    return Filter(
        torch.tensor(top_k), torch.tensor(top_p, dtype=torch.float64), torch.tensor(min_p)
    )


def kept_slowly(weights: list[float], top_k: int, top_p: float, min_p: float) -> list[int]:
    """The ids that the filters keep, in order, written as the contract reads."""
    order = sorted(range(len(weights)), key=lambda i: (-weights[i], i))
    order = [i for i in order if weights[i] > 0]
    if top_k > 0:
        order = order[:top_k]
    total, before, kept = sum(weights[i] for i in order), 0.0, []
    for i in order:
        if before >= top_p * total:
            break
        kept.append(i)
        before += weights[i]
    return [i for i in kept if weights[i] >= min_p * weights[order[0]]]


def test_greedy_takes_the_lower_of_equals() -> None:
    logits = torch.tensor([[0.0, 2, 2, 1], [3, 3, 3, 3]])
    assert sample(logits, row(temperature=0), row(temperature=1e-6)) == [1, 0]


def test_bfloat16_logits_are_compared_exactly() -> None:
    logits = torch.tensor([[1.0, 1.0078125]], dtype=torch.bfloat16)
    assert sample(logits, row(temperature=0)) == [1]


def test_the_draw_follows_the_distribution() -> None:
    probabilities = torch.tensor([0.1, 0.0, 0.2, 0.7])
    uniform = torch.linspace(0, 1, 10_001, dtype=torch.float64)[:-1]
    drawn = draw(probabilities.repeat(len(uniform), 1), uniform)
    shares = torch.bincount(drawn, minlength=4) / len(uniform)
    torch.testing.assert_close(shares, probabilities, atol=2e-4, rtol=0)


@given(
    st.lists(st.sampled_from([0.0, 1e-30, 1e-9, 0.1, 1.0]), min_size=1, max_size=400),
    st.floats(0, 1, exclude_max=True),
)
def test_what_has_no_weight_is_never_drawn(weights: list[float], uniform: float) -> None:
    weights[len(weights) // 2] = 1.0
    tensor = torch.tensor([weights])
    numbers = torch.tensor([uniform], dtype=torch.float64)
    assert weights[int(draw(tensor, numbers))] > 0
    off = filters((-1, 1.0, 0.0))
    assert weights[int(draw_filtered(tensor, off, numbers))] > 0


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=VOCABULARY),
    st.integers(-1, 320),
    st.sampled_from([1.0, 0.95, 0.5, 0.1, 1e-6]),
    st.sampled_from([0.0, 0.01, 0.3, 1.0]),
)
def test_filters_keep_what_the_definition_keeps(
    logits: list[int], top_k: int, top_p: float, min_p: float
) -> None:
    weights = (torch.tensor([logits]).float() - max(logits)).mul(0.7).exp()
    expected = kept_slowly(weights[0].double().tolist(), top_k, top_p, min_p)
    uniform = torch.linspace(0, 1, 401, dtype=torch.float64)[:-1]
    drawn = draw_filtered(
        weights.repeat(len(uniform), 1), filters(*[(top_k, top_p, min_p)] * len(uniform)), uniform
    )
    assert set(drawn.tolist()) <= set(expected)
    assert drawn[0] == expected[0]
    heaviest = weights[0, expected].double()
    for token_id, share in zip(expected, heaviest / heaviest.sum(), strict=True):
        assert share < 1 / 350 or token_id in drawn


def test_top_k_of_equals_keeps_the_lower_ids() -> None:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 100:] = 1
    drawn = {sample(logits, row(seed=seed, top_k=3))[0] for seed in range(100)}
    assert drawn == {100, 101, 102}


def test_top_p_is_measured_on_what_top_k_left() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()[None]
    # Of the two that are left the first has 4/7 of the mass, which is more than half.
    drawn = {sample(logits, row(seed=seed, top_k=2, top_p=0.5))[0] for seed in range(60)}
    assert drawn == {0}


def test_min_p_keeps_what_lies_on_the_threshold() -> None:
    logits = torch.tensor([0.5, 0.25, 0.25, 0.0]).log()[None]
    drawn = {sample(logits, row(seed=seed, min_p=0.5))[0] for seed in range(60)}
    assert drawn == {0, 1, 2}


def test_min_p_sees_the_distribution_after_temperature() -> None:
    logits = torch.tensor([[0.0, -1.0]])
    hot = {sample(logits, row(seed=s, min_p=0.5, temperature=2.0))[0] for s in range(60)}
    cold = {sample(logits, row(seed=s, min_p=0.5, temperature=1.0))[0] for s in range(60)}
    assert (hot, cold) == ({0, 1}, {0})


PARAMS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.7, "seed": 5},
    {"temperature": 1.5, "seed": 6, "top_k": 5},
    {"temperature": 1.0, "seed": 7, "top_p": 0.8},
    {"temperature": 1.0, "seed": 8, "top_k": 50, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 1.0, "seed": 9, "min_p": 0.1, "frequency_penalty": 1.0},
    {"temperature": 1.0, "seed": 10, "logit_bias": {3: 5.0}, "min_tokens": 3},
]


@given(
    st.lists(st.tuples(st.integers(0, len(PARAMS) - 1), st.integers(0, 40)), max_size=6),
    st.integers(0, len(PARAMS) - 1),
    st.integers(0, 6),
)
def test_a_row_does_not_depend_on_its_neighbours(
    neighbours: list[tuple[int, int]], params: int, at: int
) -> None:
    at = min(at, len(neighbours))
    logits = torch.randn(len(neighbours) + 1, VOCABULARY, generator=torch.manual_seed(at)) * 3
    rows = [row([1] * position, **PARAMS[i]) for i, position in neighbours]
    rows.insert(at, row([2, 3], **PARAMS[params], place=(1, 2)))
    together = sample(logits, *rows)
    assert sample(logits[at : at + 1], rows[at]) == [together[at]]


def test_seed_prompt_choice_and_position_each_change_the_draw() -> None:
    logits = torch.zeros(1, VOCABULARY)
    rows = [
        row(),
        row(seed=1),
        row(place=(1, 0)),
        row(place=(0, 1)),
        row([0]),
    ]
    assert len({sample(logits, r)[0] for r in rows}) == len(rows)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 1.0}, {"top_k": 3}])
def test_rows_without_a_distribution_are_named_and_leave_others_alone(
    bad: float, params: dict[str, Any]
) -> None:
    logits = torch.randn(3, VOCABULARY, generator=torch.manual_seed(0))
    rows = [row(seed=i, **params) for i in range(3)]
    expected = sample(logits, *rows)
    logits[1, 7] = bad
    output = Sampler().sample(logits.clone(), rows)
    assert output.invalid == [1]
    assert [output.token_ids[0], output.token_ids[2]] == [expected[0], expected[2]]


def test_a_row_with_nothing_left_is_invalid() -> None:
    logits = torch.full((1, 4), -math.inf)
    for params in ({"temperature": 0}, {"temperature": 1.0}, {"top_p": 0.5}):
        assert Sampler().sample(logits.clone(), [row(**params)]).invalid == [0]


def test_no_bias_makes_an_illegal_token_possible() -> None:
    only_four = np.zeros((1, 10), dtype=np.int32)
    only_four[0, 0] = 1 << 4
    mask = GrammarMask([1], only_four, {})
    rows = [row(logit_bias={3: 100}, temperature=0), row(logit_bias={3: 100}, temperature=0)]
    output = Sampler().sample(torch.zeros(2, VOCABULARY), rows, mask)
    assert output.token_ids == [3, 4]


def test_the_rows_of_a_step_may_change() -> None:
    sampler = Sampler()
    logits = torch.tensor([[1.0, 2.0]])
    greedy, biased = row(temperature=0), row(temperature=0, logit_bias={0: 5.0})
    assert sampler.sample(logits.clone(), [greedy]).token_ids == [1]
    assert sampler.sample(logits.clone(), [biased]).token_ids == [0]
    assert sampler.sample(logits.repeat(2, 1), [biased, greedy]).token_ids == [0, 1]
