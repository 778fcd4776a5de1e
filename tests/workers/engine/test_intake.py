from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from completions.contract.job_request import LogprobParams, Task
from completions.contract.sampling import SamplingParams
from tests.workers.engine import tiny_models
from workers.engine.core.request import Audience, Request
from workers.engine.exceptions import ContextLengthExceeded, InvalidRequest
from workers.engine.intake import Intake
from workers.engine.text.detokenizer import Vocabulary

TOKENIZER = tiny_models.byte_level_tokenizer()
INTAKE = Intake(
    vocabulary=Vocabulary(TOKENIZER, 400),
    vocab_size=400,
    eos_token_ids=frozenset({0}),
    max_model_len=50,
    max_cached_tokens=40,
)


def request(*prompts: tuple[int, ...], published: Any = None, **params: Any) -> Request:
    return Request(prompts, SamplingParams(**params), published=published or {}, request_id="r")


@pytest.mark.parametrize(
    "refused",
    [
        request(),
        request(()),
        request((1,), ()),
        request((400,)),
        request((-1,)),
        request((1,), stop_token_ids=(400,)),
        request((1,), logit_bias={400: 1.0}),
        request((1,), stop_regex=("(",)),
        request((1,), published={0: (400,)}),
        request((1,), published={1: (3,)}),
        request((1,), published={0: (3, 3, 3)}, max_tokens=2),
    ],
)
def test_what_cannot_run_is_refused(refused: Request) -> None:
    with pytest.raises(InvalidRequest):
        INTAKE.accept(refused)


def test_a_model_refuses_what_its_runner_does_not_do() -> None:
    intake = replace(INTAKE, tasks=frozenset())
    with pytest.raises(InvalidRequest, match="this model cannot generate"):
        intake.accept(request((1,)))


def test_all_sequences_of_a_request_have_its_audience() -> None:
    state = INTAKE.accept(structs.replace(request((1, 2), (3,), n=2), audience=Audience.TOKENS))
    assert [sequence.origin.audience for sequence in state.sequences] == 4 * [Audience.TOKENS]


def test_sequences_of_one_prompt_share_its_hashes() -> None:
    scored = structs.replace(
        request((1, 2), (3,), max_tokens=0),
        task=Task.SCORE,
        logprobs=(LogprobParams(), LogprobParams()),
        continuations=(((4,), (5,)), ((4,), (5,))),
    )
    for state in (INTAKE.accept(request((1, 2), (3,), n=2)), INTAKE.accept(scored)):
        first, second, other, another = (each.prefix.prompt for each in state.sequences)
        assert (first.num_tokens, other.num_tokens) == (2, 1)
        assert first is second
        assert other is another


@pytest.mark.parametrize(
    ("setting", "penalty", "penalizes"),
    [(True, 1.2, True), (True, 1.0, False), (False, 1.2, False)],
)
def test_the_prompt_is_penalised_if_engine_and_request_ask_for_it(
    setting: bool, penalty: float, penalizes: bool
) -> None:
    intake = replace(INTAKE, penalizes_prompt=setting)
    (sequence,) = intake.accept(request((1, 2), repetition_penalty=penalty)).sequences
    assert sequence.rules.penalizes_prompt == penalizes


@pytest.mark.parametrize(
    ("length", "max_tokens", "fits"),
    [(24, 16, True), (24, 17, False), (39, 1, True), (49, 1, False), (50, 1, False)],
)
def test_prompt_and_max_tokens_must_fit_the_context(
    length: int, max_tokens: int, fits: bool
) -> None:
    candidate = request((1,) * length, max_tokens=max_tokens)
    if fits:
        [seq] = INTAKE.accept(candidate).sequences
        assert seq.max_total_tokens == length + max_tokens
    else:
        with pytest.raises(ContextLengthExceeded):
            INTAKE.accept(candidate)


def test_a_sequence_per_choice_in_the_order_of_the_contract() -> None:
    state = INTAKE.accept(request((1, 2), (3,), n=2, published={3: (7, 8)}))
    places = [
        (s.choice.index, s.origin.prompt_index, s.origin.choice_index) for s in state.sequences
    ]
    assert places == [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]
    assert [s.token_ids for s in state.sequences] == [[1, 2], [1, 2], [3], [3, 7, 8]]
    assert [s.prompt_len for s in state.sequences] == [2, 2, 1, 1]
