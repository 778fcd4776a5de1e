"""What a grammar takes away from the model, as a choice reports it."""

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from completions.contract.job_request import LogprobParams
from tests.workers.engine import tiny_models
from tests.workers.engine.driving import GLM_EXAMPLE, choice, request
from workers.engine.backends.cpu import logits as native_logits
from workers.engine.engine import Engine
from workers.engine.grammar.effect import removals
from workers.engine.grammar.mask import GrammarMask


@pytest.mark.parametrize("in_c", [True, False])
def test_removals_are_of_the_wanted_rows_and_change_nothing(
    in_c: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_c:
        monkeypatch.setattr(native_logits, "load_library", lambda: None)
    logits = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    allowed = np.array([[0b011], [0b001], [0b111]], dtype=np.int32)
    before = logits.clone()
    found = removals(logits, GrammarMask([0, 1, 2], allowed, {}), [0, 1])
    assert torch.equal(logits, before)
    assert found.keys() == {0, 1}
    shares = logits.softmax(dim=1)
    assert found[0] == (pytest.approx(float(shares[0, 2])), True)
    assert found[1] == (pytest.approx(float(shares[1, 1] + shares[1, 2])), False)
    assert removals(logits, GrammarMask([0], allowed[:1], {}), [2]) == {}


def test_a_choice_reports_what_it_was_not_allowed(engine: Engine) -> None:
    letters = tuple(map(tiny_models.byte_level_tokenizer().token_to_id, "AB"))
    scored = replace(request(max_tokens=1), logprobs=(LogprobParams(token_ids_logprob=letters),))
    free = choice(engine, scored)
    assert free.effect is None
    assert free.logprobs is not None
    found = choice(engine, replace(request(grammar=GLM_EXAMPLE), report_constraint=True))
    assert found.effect is not None
    kept = float(np.exp(free.logprobs.named[0]).sum())
    assert found.effect.removed == pytest.approx(1 - kept, abs=1e-4)
    assert found.effect.overruled == (free.token_ids[0] not in letters)
    assert (found.effect.steps, found.effect.forced_tokens) == (1, 0)


@pytest.mark.parametrize("scored", [False, True])
def test_every_token_is_forced_or_a_step(engine: Engine, scored: bool) -> None:
    asked = request(grammar='start: /[a-c]{3}/ "forced" ("xx" | "yy")', max_tokens=40, seed=3)
    asked = replace(asked, report_constraint=True)
    if scored:
        asked = replace(asked, logprobs=(LogprobParams(),))
    found = choice(engine, asked)
    assert found.effect is not None
    assert found.effect.steps + found.effect.forced_tokens == len(found.token_ids)
    assert found.effect.forced_tokens >= len("forced") // 2
    assert 0 < found.effect.removed < found.effect.steps
    if scored:
        assert found.logprobs is not None
        assert len(found.logprobs.forced) == len(found.token_ids)
        assert sum(found.logprobs.forced) == found.effect.forced_tokens
        assert not found.logprobs.forced[0]


def test_forced_tokens_count_as_overruled_where_another_was_likelier(engine: Engine) -> None:
    """Only where the model is asked about them: else they are not computed one by one."""
    asked = request(grammar='start: "forced to say this"', max_tokens=40)
    asked = replace(asked, report_constraint=True)
    scored = replace(asked, logprobs=(LogprobParams(top_logprobs_num=1),))
    found = choice(engine, scored)
    assert found.effect is not None
    assert found.logprobs is not None
    likeliest = found.logprobs.top_ids[:, 0].tolist()
    unlikely = sum(
        forced and best != token_id
        for forced, best, token_id in zip(
            found.logprobs.forced, likeliest, found.token_ids, strict=True
        )
    )
    assert found.effect.forced_scored == found.effect.forced_tokens > 5
    assert found.effect.forced_overruled == unlikely > 0
    plain = choice(engine, asked)
    assert plain.effect is not None
    assert plain.token_ids == found.token_ids
    assert plain.effect.forced_scored < plain.effect.forced_tokens


def test_nothing_is_reported_unless_asked_for(engine: Engine) -> None:
    assert choice(engine, request(grammar=GLM_EXAMPLE)).effect is None
    assert choice(engine, replace(request(max_tokens=2), report_constraint=True)).effect is None
    found = choice(engine, replace(request(grammar=GLM_EXAMPLE), logprobs=(LogprobParams(),)))
    assert found.logprobs is not None
    assert found.logprobs.forced == []
