"""The engine's deltas through events and back."""

import sys
from base64 import b64decode

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.contract.job_request import LogprobParams
from completions.contract.sampling import SamplingParams
from completions.contract.token_origins import make_mask
from completions.exceptions import from_job_error
from completions.jobs import events
from completions.jobs.events import ChoiceEvent
from completions.requests.completion import CompletionRequestObject
from completions.requests.fields.base import NumberField
from completions.responses.choice_record import ChoiceRecord
from workers.engine.core.output import ChoiceDelta, TokenLogprobs
from workers.engine.exceptions import DeadlineExceeded, GrammarError, InvalidRequest
from workers.engine.text.finish import FinishReason
from workers.event_encoding import convert_error, encode_choice, join_choices


def scores(num_rows: int, top: int = 2, named: int = 1, offsets=()) -> TokenLogprobs:
    """Values that float32 holds exactly."""
    return TokenLogprobs(
        chosen=np.arange(num_rows, dtype=np.float32) / -4,
        top_ids=np.arange(num_rows * top).reshape(num_rows, top),
        top=np.full((num_rows, top), -0.5, np.float32),
        named=np.full((num_rows, named), -9999.0, np.float32),
        offsets=list(offsets),
    )


def through_the_wire(delta: ChoiceDelta) -> ChoiceEvent:
    decoded = events.decode(events.encode_choices(3, [encode_choice(delta)]))
    assert isinstance(decoded, list)
    return decoded[0]


def test_a_plain_delta_has_no_extras():
    assert encode_choice(ChoiceDelta(1, [5], "a")) == ChoiceEvent(1, [5], "a")
    assert through_the_wire(ChoiceDelta(1, [5], "a")).extras == {}


def test_logprobs_become_one_record_of_columns():
    event = through_the_wire(ChoiceDelta(0, [5, 6], "ab", logprobs=scores(2, offsets=(0, 1))))
    assert event.extras == {
        "logprobs": {
            "chosen": [0.0, -0.25],
            "offsets": [0, 1],
            "top_ids": [[0, 1], [2, 3]],
            "top": [[-0.5, -0.5], [-0.5, -0.5]],
            "named": [[-9999.0], [-9999.0]],
        }
    }


def test_what_was_forced_is_a_column():
    scored = scores(2, 0, 0, offsets=(0, 1))
    scored.forced = [False, True]
    event = through_the_wire(ChoiceDelta(0, [5, 6], "ab", logprobs=scored))
    assert event.extras["logprobs"]["forced"] == [False, True]


def test_what_was_not_asked_for_is_left_out():
    event = through_the_wire(ChoiceDelta(0, [5], "a", logprobs=scores(1, 0, 0, offsets=(0,))))
    assert event.extras == {"logprobs": {"chosen": [0.0], "offsets": [0]}}


@pytest.mark.parametrize("num_rows", [0, 1, 3])
def test_the_first_row_of_a_prompt_is_null(num_rows):
    prompt = TokenLogprobs.unknown(num_rows, LogprobParams(2, 0, (7,)))
    rest = prompt.rows(1, num_rows)
    rest.chosen[:], rest.top[:], rest.top_ids[:], rest.named[:] = -1, -0.5, 4, -2
    event = through_the_wire(ChoiceDelta(0, prompt_logprobs=prompt))
    first = [None][:num_rows]
    others = max(0, num_rows - 1)
    assert event.extras["prompt_logprobs"] == {
        "chosen": first + [-1.0] * others,
        "top_ids": first + [[4, 4]] * others,
        "top": first + [[-0.5, -0.5]] * others,
        "named": first + [[-2.0]] * others,
    }


def test_numbers_have_the_digits_of_float32_only():
    delta = ChoiceDelta(0, [5], "a", logprobs=scores(1, 0, 0))
    assert delta.logprobs is not None
    delta.logprobs.chosen[0] = np.float32(-0.1)
    assert b"[-0.1]" in events.encode_choices(1, [encode_choice(delta)])


def test_records_and_the_text_of_a_regex():
    experts = np.arange(12, dtype=np.int32).reshape(2, 3, 2)
    delta = ChoiceDelta(
        0, [5], "a", FinishReason.STOP, "a+", matched_stop_text="aa", hidden_states=[0.5, -1.0],
        routed_experts=experts, cached_tokens=16,
    )  # fmt: skip
    extras = dict(through_the_wire(delta).extras)
    sent = np.frombuffer(b64decode(extras.pop("routed_experts")), dtype="<i4")
    assert sent.reshape(experts.shape).tolist() == experts.tolist()
    assert extras == {
        "cached_tokens": 16, "hidden_states": [0.5, -1.0], "matched_stop_text": "aa",
    }  # fmt: skip


def test_a_grammar_that_fails_before_the_first_token_is_the_clients():
    assert convert_error(GrammarError("deep"), 0).code == "invalid_grammar"
    assert convert_error(GrammarError("deep"), 3).code == "grammar_error"
    assert convert_error(InvalidRequest("no"), 0) == events.JobError("invalid_value", "no")


def test_a_deadline_has_one_name_in_logs_metrics_and_answers():
    code = convert_error(DeadlineExceeded(), 3).code
    assert code == from_job_error(code).code == "generation_timeout"


def test_what_a_client_may_ask_for_the_engine_takes() -> None:
    """The extremes of every number with a range of its own, and of those without an end."""
    known = set(SamplingParams.__struct_fields__)
    numbers = {
        name: field
        for name, field in CompletionRequestObject.fields.items()
        if isinstance(field, NumberField) and name in known
    }
    assert len(numbers) >= 8
    for name, field in numbers.items():
        least = 5e-324 if field.range.excludes_low else field.range.low
        most = sys.float_info.max if field.range.high is None else field.range.high
        for value in (least, most):
            assert getattr(SamplingParams(**{name: value}), name) == value


def test_the_last_delta_names_the_build():
    assert encode_choice(ChoiceDelta(0, [5], "a"), "c-1").extras == {}
    ended = ChoiceDelta(0, [5], "a", FinishReason.STOP)
    assert encode_choice(ended, "c-1").extras == {"engine": "c-1"}


@given(st.lists(st.lists(st.booleans(), max_size=4), min_size=1, max_size=6))
def test_forced_tokens_keep_their_places_where_steps_are_joined(steps):
    """Each step of a choice has tokens, of which the grammar forces some."""
    gains = [
        encode_choice(
            ChoiceDelta(
                0, list(range(len(step))), "", forced=[i for i, forced in enumerate(step) if forced]
            )
        )
        for step in steps
    ]
    [joined] = join_choices(gains)
    whole = [forced for step in steps for forced in step]
    expected = [place for place, forced in enumerate(whole) if forced]
    assert (joined.extras or {}).get("forced", []) == expected
    assert make_mask(len(whole), expected) == [2 if forced else 1 for forced in whole]
    record = ChoiceRecord(0)
    for gain in gains:
        record.add(ChoiceEvent(0, gain.token_ids, gain.text, None, None, gain.extras))
    assert record.forced == expected
