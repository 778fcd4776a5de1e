import math
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.workers.engine.rows import row
from workers.engine.core.sequence_parts import SamplingRules
from workers.engine.grammar.mask import GrammarMask
from workers.engine.sampling.sampler import BANS, CHANGES, Sampler

VOCABULARY = 300

PARAMS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.7, "seed": 5},
    {"temperature": 1.5, "seed": 6, "top_k": 5},
    {"temperature": 1.0, "seed": 7, "top_p": 0.8},
    {"temperature": 1.0, "seed": 8, "top_k": 50, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 1.0, "seed": 9, "min_p": 0.1, "frequency_penalty": 1.0},
    {"temperature": 0, "presence_penalty": 1.0, "repetition_penalty": 1.3},
    {"temperature": 1.0, "seed": 10, "logit_bias": {3: 5.0}, "min_tokens": 3},
]
NEEDING_TOKENS: list[dict[str, Any]] = [
    {"temperature": 0, "dry_multiplier": 4.0, "dry_allowed_length": 1},
    {"temperature": 0.9, "seed": 11, "dry_multiplier": 4.0, "top_k": 40},
]


def sample(logits: Tensor, *rows: Any) -> list[int]:
    return Sampler().sample(logits.clone(), list(rows)).token_ids


def test_rows_that_ask_for_nothing_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for use in (*CHANGES, *BANS):
        for method in ("set_rows", "apply", "launch"):
            monkeypatch.setattr(use.make, method, Mock(side_effect=AssertionError))
    assert sample(torch.tensor([[0.0, 2.0]]), row(temperature=0)) == [1]


def test_a_processor_forgets_its_rows_in_a_step_without_any() -> None:
    sampler, logits = Sampler(), torch.zeros(1, 4)
    for rows in ([row(logit_bias={1: 2.0})], [row()], [row(logit_bias={2: 2.0})]):
        sampler.sample(logits.clone(), rows)
    assert sampler.sample(logits.clone(), [row(temperature=0)]).token_ids == [0]


def test_greedy_takes_the_lower_of_equals() -> None:
    logits = torch.tensor([[0.0, 2, 2, 1], [3, 3, 3, 3]])
    assert sample(logits, row(temperature=0), row(temperature=1e-6)) == [1, 0]


def test_bfloat16_logits_are_compared_exactly() -> None:
    logits = torch.tensor([[1.0, 1.0078125]], dtype=torch.bfloat16)
    assert sample(logits, row(temperature=0)) == [1]


@given(
    st.lists(
        st.tuples(st.integers(0, len(PARAMS) - 1), st.integers(0, 40)), min_size=1, max_size=6
    ),
    st.integers(0, 2**31),
)
def test_what_is_launched_is_what_is_sampled(kinds: list[tuple[int, int]], seed: int) -> None:
    drawn = torch.Generator().manual_seed(seed)
    outputs = [torch.randint(40, (1 + n,), generator=drawn).tolist() for _, n in kinds]
    logits = torch.randn(len(kinds), VOCABULARY, generator=drawn) * 3
    logits[:, :40] += 4  # so that tokens repeat
    rows = [row(output, **PARAMS[kind]) for (kind, _), output in zip(kinds, outputs, strict=True)]
    expected = Sampler().sample(logits.clone(), rows).token_ids
    sampler = Sampler()
    assert sampler.can_launch(rows, logits.device)
    assert sampler.launch(logits.clone(), rows).token_ids.tolist() == expected
    # The last token of each row is known on the device alone.
    behind = [row(out[:-1], **PARAMS[kind]) for (kind, _), out in zip(kinds, outputs, strict=True)]
    for each in behind:
        each.num_in_flight = 1
    sampler = Sampler()
    assert sampler.can_launch(behind, logits.device)
    last = torch.tensor([output[-1] for output in outputs])
    assert sampler.launch(logits.clone(), behind, last).token_ids.tolist() == expected


@given(
    st.lists(
        st.tuples(
            st.integers(0, len(PARAMS) + len(NEEDING_TOKENS) - 1),
            st.integers(0, 40),
            st.booleans(),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 2**31),
)
def test_what_is_launched_under_masks_is_what_is_sampled(
    kinds: list[tuple[int, int, bool]], seed: int
) -> None:
    drawn = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(kinds), VOCABULARY, generator=drawn) * 3
    rows, masked = [], []
    for i, (kind, length, has_mask) in enumerate(kinds):
        output = torch.randint(9, (1 + length,), generator=drawn).tolist()  # so that runs repeat
        grammar = Mock(closes=False) if has_mask else None
        rows.append(row(output, **[*PARAMS, *NEEDING_TOKENS][kind], grammar=grammar))
        masked += [i] * has_mask
    bits = torch.randint(-(2**31), 2**31, (len(masked), -(-VOCABULARY // 32)), generator=drawn)
    allowed = bits.to(torch.int32).numpy()
    allowed[:, 0] |= 1  # token 0 is always possible
    mask = GrammarMask(masked, allowed, {}) if masked else None
    expected = Sampler().sample(logits.clone(), rows, mask).token_ids
    sampler = Sampler()
    assert sampler.can_launch(rows, logits.device)
    needing = any(has_mask or kind >= len(PARAMS) for kind, _, has_mask in kinds)
    assert sampler.needs_tokens(rows, logits.device) == needing
    assert sampler.launch(logits.clone(), rows, mask=mask).token_ids.tolist() == expected


@pytest.mark.parametrize("need", ["custom processor", "effect", "record"])
def test_a_row_that_waits_for_the_device_is_not_launched(need: str) -> None:
    other = row(grammar=Mock() if need == "effect" else None)
    other.choice.effect = Mock() if need == "effect" else None
    other.rules = SamplingRules(processor=Mock() if need == "custom processor" else None)
    other.record = Mock() if need == "record" else None
    sampler, plain, device = Sampler(), row(), torch.device("cpu")
    assert sampler.can_launch([plain], device)
    assert not sampler.can_launch([plain, other], device)
    assert sampler.can_launch([plain], device), "once the row is gone"


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
