"""DRY against the formula, place by place, and its sequence breakers."""

from collections.abc import Sequence as Rows

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.workers.engine.rows import row, set_rows
from workers.engine.core.sequence import Sequence
from workers.engine.core.sequence_parts import SamplingRules
from workers.engine.sampling.dry import Dry, breaker_ids

VOCABULARY = 12
LONGEST = 50


def naive(tokens: Rows[int], breakers: frozenset[int], params: dict[str, float]) -> list[float]:
    """What is subtracted from each token's logit, as mistral.rs computes it."""
    lengths: dict[int, int] = {}
    last = len(tokens) - 1
    for i in range(last):
        following = tokens[i + 1]
        if tokens[i] != tokens[last] or following in breakers:
            continue
        length = 1
        while (
            length < LONGEST
            and length <= i
            and tokens[i - length] == tokens[last - length]
            and tokens[last - length] not in breakers
        ):
            length += 1
        lengths[following] = max(length, lengths.get(following, 0))
    allowed = params["dry_allowed_length"]
    return [
        params["dry_multiplier"] * params["dry_base"] ** (lengths[t] - allowed)
        if t in lengths and lengths[t] >= allowed
        else 0.0
        for t in range(VOCABULARY)
    ]


def subtracted(dry: Dry, rows: list[Sequence]) -> list[list[float]]:
    logits = torch.zeros(len(rows), VOCABULARY)
    set_rows(dry, rows)
    dry.apply(logits)
    found: list[list[float]] = (-logits).tolist()
    return found


PARAMS = st.fixed_dictionaries(
    {
        "dry_multiplier": st.sampled_from([0.5, 1.0]),
        "dry_base": st.sampled_from([0.5, 1.25, 1.75]),
        "dry_allowed_length": st.integers(0, 6),
    }
)
TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


@given(prompt=TOKENS, output=TOKENS, breakers=st.frozensets(st.integers(0, 3)), params=PARAMS)
def test_every_step_subtracts_what_the_formula_says(
    prompt: list[int], output: list[int], breakers: frozenset[int], params: dict[str, float]
) -> None:
    seq = row(prompt=prompt, **params)
    seq.max_total_tokens = len(prompt) + len(output)
    seq.rules = SamplingRules(dry_breakers=breakers)
    dry = Dry()
    for token in [*output, None]:
        [found] = subtracted(dry, [seq])
        assert found == pytest.approx(naive(seq.token_ids, breakers, params), rel=1e-5)
        if token is not None:
            seq.token_ids.append(token)


@given(tokens=st.lists(st.integers(0, 1), min_size=100, max_size=160), at_once=st.integers(1, 120))
def test_many_tokens_at_once_as_one_by_one(tokens: list[int], at_once: int) -> None:
    params = {"dry_multiplier": 1.0, "dry_base": 1.1, "dry_allowed_length": 1}
    seq = row(prompt=tokens[:1], **params)
    seq.max_total_tokens = len(tokens)
    dry = Dry()
    for end in [*range(1, len(tokens), at_once), len(tokens)]:
        seq.token_ids = tokens[:end]
        [found] = subtracted(dry, [seq])
    assert found == pytest.approx(naive(tokens, frozenset(), params), rel=1e-5)


def test_rows_have_their_own_and_others_are_left_alone() -> None:
    params = {"dry_multiplier": 2.0, "dry_base": 2.0, "dry_allowed_length": 1}
    rows = [row(prompt=[1, 2, 1, 2]), row(prompt=[1, 2, 1, 2], **params), row(prompt=[3], **params)]
    silent, repeats, begins = subtracted(Dry(), rows)
    assert silent == begins == [0.0] * VOCABULARY
    assert repeats == pytest.approx(naive([1, 2, 1, 2], frozenset(), params))
    assert repeats[1] == 4.0


def test_no_penalty_is_infinite() -> None:
    seq = row(prompt=[1] * 60, dry_multiplier=1.0, dry_base=1e30)
    [found] = subtracted(Dry(), [seq])
    assert np.isfinite(found).all()
    assert found[1] > 1e29


def test_a_breaker_is_the_last_token_behind_a_letter(tokenizer: Tokenizer) -> None:
    expected = {tokenizer.encode(text).ids[-1] for text in ("a\n", "a:", "a the")}
    assert breaker_ids(tokenizer, ("\n", ":", " the")) == expected
