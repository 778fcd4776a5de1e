"""Counts that stay on the device, against the penalties computed anew on the host."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.engine.rows import row, set_rows
from workers.engine.sampling import token_counts
from workers.engine.sampling.logits_processors import Penalties
from workers.engine.sampling.token_counts import PlacedCounts

VOCABULARY = 8
tokens = st.integers(0, VOCABULARY - 1)
penalties = st.fixed_dictionaries(
    {
        "frequency_penalty": st.sampled_from([0.0, 0.5, -1.5]),
        "presence_penalty": st.sampled_from([0.0, 0.3]),
        "repetition_penalty": st.sampled_from([1.0, 1.3, 0.7]),
        "penalizes_prompt": st.booleans(),
    }
)
NEUTRAL = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}


def is_penalised(case: tuple[list[int], dict[str, Any]]) -> bool:
    return any(case[1][name] != value for name, value in NEUTRAL.items())


cases = st.lists(st.tuples(st.lists(tokens, max_size=6), penalties), min_size=1, max_size=4).filter(
    lambda rows: any(map(is_penalised, rows))
)
"""At least one row has a penalty: a step without one calls no processor."""
step = st.tuples(st.booleans(), st.lists(st.lists(tokens, max_size=3), min_size=4, max_size=4))


def anew(rows: Any, logits: torch.Tensor) -> torch.Tensor:
    processor, changed = Penalties(), logits.clone()
    set_rows(processor, rows)
    processor.apply(changed)
    return changed


@pytest.mark.represented_by("0")
@pytest.mark.parametrize("room", [0, 1, 64])
@settings(deadline=None)
@given(cases=cases, steps=st.lists(step, max_size=8))
def test_launched_penalties_follow_what_rows_gain(
    room: int, cases: list[tuple[list[int], dict[str, Any]]], steps: Any
) -> None:
    """With tokens that only the device knows in some steps, and without room for new ones."""
    rows = [row(output, prompt=[1, 2, 2], **options) for output, options in cases]
    drawn = torch.Generator().manual_seed(0)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(token_counts, "_ROOM", room)
        processor = Penalties()
        set_rows(processor, rows)
        for is_ahead, gained in steps:
            logits = torch.randn(len(rows), VOCABULARY, generator=drawn)
            launched = logits.clone()
            if is_ahead:
                pending = torch.randint(VOCABULARY, (len(rows),), generator=drawn)
                processor.launch(launched, pending)
                for seq, token_id in zip(rows, pending.tolist(), strict=True):
                    seq.token_ids.append(token_id)
            else:
                processor.launch(launched, None)
            assert launched.equal(anew(rows, logits))
            for seq, token_ids in zip(rows, gained, strict=False):
                seq.token_ids += token_ids


def test_a_step_sends_only_what_rows_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    move = token_counts.to_device

    def counted(arrays: Any, device: torch.device) -> Any:
        sent.append(sum(array.size for array in arrays))
        return move(arrays, device)

    monkeypatch.setattr(token_counts, "to_device", counted)
    rows = [row(list(range(500)), frequency_penalty=0.5) for _ in range(3)]
    processor, logits = Penalties(), torch.zeros(3, 600)
    set_rows(processor, rows)
    processor.launch(logits, None)
    assert sent.pop() > 3 * 500
    for seq, token_id in zip(rows, (7, 8, 555), strict=True):
        seq.token_ids.append(token_id)
    processor.launch(logits, None)
    assert sent == [3 + 2], "three places, and a new token with its row"


def test_steps_on_the_host_between_launched_ones_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[PlacedCounts] = []
    make = PlacedCounts.__init__

    def noted(self: PlacedCounts, *args: Any) -> None:
        made.append(self)
        make(self, *args)

    monkeypatch.setattr(PlacedCounts, "__init__", noted)
    seq = row([3], frequency_penalty=1.0)
    processor = Penalties()
    set_rows(processor, [seq])
    logits = torch.zeros(1, VOCABULARY)
    processor.launch(logits.clone(), None)
    seq.token_ids.append(3)
    processor.apply(logits.clone())
    seq.token_ids.append(3)
    processor.launch(logits, None)
    assert logits[0, 3] == -3
    assert len(made) == 2
