import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.engine.rows import row, set_rows
from workers.engine.core.sequence import Sequence
from workers.engine.sampling.logits_processors import (
    LogitBias,
    LogitsProcessor,
    Penalties,
)

VOCABULARY = 8


def apply(processor: LogitsProcessor, rows: list[Sequence], logits: torch.Tensor) -> torch.Tensor:
    set_rows(processor, rows)
    changed = logits.clone()
    processor.apply(changed)
    return changed


def penalised(logit: float, count: int, freq: float, pres: float, rep: float) -> float:
    """One token's logit as the contract defines it."""
    if count == 0:
        return logit
    logit = logit - freq * count - pres
    return logit / rep if logit > 0 else logit * rep


factors = st.tuples(st.floats(-2, 2), st.floats(-2, 2), st.floats(0.1, 2))
outputs = st.lists(st.integers(0, VOCABULARY - 1), max_size=12)


@given(st.lists(st.tuples(outputs, factors), min_size=1, max_size=4))
def test_penalties_follow_the_formula(cases: list[tuple[list[int], tuple[float, ...]]]) -> None:
    rows = [
        row(output, frequency_penalty=f, presence_penalty=p, repetition_penalty=r)
        for output, (f, p, r) in cases
    ]
    logits = torch.linspace(-3, 3, VOCABULARY).repeat(len(rows), 1)
    changed = apply(Penalties(), rows, logits)
    expected = [
        [penalised(z, output.count(i), f, p, r) for i, z in enumerate(logits[0].tolist())]
        for output, (f, p, r) in cases
    ]
    torch.testing.assert_close(changed, torch.tensor(expected), rtol=1e-4, atol=1e-5)


def test_penalties_count_the_output_and_not_the_prompt() -> None:
    logits = torch.ones(1, VOCABULARY)
    changed = apply(Penalties(), [row([2], prompt=[1, 1], presence_penalty=0.5)], logits)
    assert changed.tolist() == [[1, 1, 0.5, 1, 1, 1, 1, 1]]


def test_the_repetition_penalty_counts_the_prompt_where_the_engine_is_set_so() -> None:
    logits = torch.ones(1, VOCABULARY)
    seq = row(
        [2], prompt=[1, 1], penalizes_prompt=True,
        repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25,
    )  # fmt: skip
    processor = Penalties()
    assert apply(processor, [seq], logits).tolist() == [[1, 0.5, 0.125, 1, 1, 1, 1, 1]]
    seq.token_ids.append(1)
    assert apply(processor, [seq], logits).tolist() == [[1, 0.125, 0.125, 1, 1, 1, 1, 1]]


def test_penalties_follow_a_growing_output() -> None:
    penalties, seq = Penalties(), row(frequency_penalty=1.0)
    set_rows(penalties, [row(), seq])
    for token_id in [3] * 100 + list(range(100, 200)):
        seq.token_ids.append(token_id)
        logits = torch.zeros(2, 200)
        penalties.apply(logits)
    assert logits[1, 3] == -100
    assert logits[1, 100:].tolist() == [-1] * 100
    assert not logits[0].any()


def test_a_sequence_that_sits_out_a_step_keeps_its_counts() -> None:
    penalties, seq = Penalties(), row([3, 3], frequency_penalty=1.0)
    apply(penalties, [seq], torch.zeros(1, VOCABULARY))
    set_rows(penalties, [row()])
    logits = apply(penalties, [row(), seq], torch.zeros(2, VOCABULARY))
    assert logits[1, 3] == -2


def test_ended_sequences_are_forgotten() -> None:
    penalties, seq = Penalties(), row([3], frequency_penalty=1.0)
    set_rows(penalties, [seq])
    seq.finished = True
    set_rows(penalties, [row()])
    assert not penalties._counts  # the memory shows nowhere else


def test_bias_is_added_to_its_rows_only() -> None:
    rows = [row(), row(logit_bias={1: 2.5, 3: -100}), row(logit_bias={0: 1.0})]
    changed = apply(LogitBias(), rows, torch.zeros(3, 4))
    assert changed.tolist() == [[0, 0, 0, 0], [0, 2.5, 0, -100], [1, 0, 0, 0]]
