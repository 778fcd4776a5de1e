"""The wire form of events."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from completions.contract.usage import Usage
from completions.jobs import events
from completions.jobs.events import ChoiceEvent, EndEvent, JobError
from completions.jobs.execute import StepEvent

choices = st.lists(
    st.builds(
        ChoiceEvent,
        st.integers(0, 1023),
        st.lists(st.integers(0, 2**31), max_size=5),
        st.text(),
        st.sampled_from([None, "stop", "length"]),
        st.one_of(st.none(), st.integers(0, 2**31), st.text()),
    ),
    min_size=1,
    max_size=8,
)


@given(st.integers(1, 2**40), choices)
def test_choices_survive_the_wire_and_are_numbered_without_gaps(first, sent):
    decoded = events.decode(events.encode_choices(first, sent))
    assert isinstance(decoded, list)
    assert [c.sequence_number for c in decoded] == list(range(first, first + len(sent)))
    assert [structs.replace(choice, sequence_number=0) for choice in decoded] == sent


def test_a_choice_has_a_compact_form():
    assert events.encode_choices(7, [ChoiceEvent(0, [5], "a", None, None)]) == (
        b'{"s":7,"c":[[0,[5],"a",null,null]]}'
    )
    assert events.decode(b'{"s":7,"c":[[0,[5],"a",null,null]]}') == [
        ChoiceEvent(0, [5], "a", sequence_number=7)
    ]


def test_ends_survive_the_wire():
    for end in (
        EndEvent(3, "completed", None, Usage(1, 2, 3)),
        EndEvent(1, "failed", JobError("grammar_error", "…"), None),
        EndEvent(1, "cancelled", None, None),
    ):
        wire = events.encode_end(end.sequence_number, end.state, end.error, end.usage)
        assert events.decode(wire) == end


def test_counts_of_a_later_version_are_left_out():
    usage = b'{"prompt_tokens":1,"completion_tokens":2,"images":4}'
    end = events.decode(b'{"s":3,"end":"completed","error":null,"usage":%b}' % usage)
    assert isinstance(end, EndEvent)
    assert end.usage == Usage(1, 2)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
steps_of_choices = st.lists(
    st.builds(
        ChoiceEvent,
        st.integers(0, 3),
        st.lists(st.integers(0, 2**31), max_size=4),
        texts,
        st.sampled_from([None, "stop"]),
        st.one_of(st.none(), st.integers(0, 9), texts),
        st.sampled_from([{}, {"forced": [0]}, {"matched_stop_text": "\n\u2028\x85"}]),
    ),
    min_size=1,
    max_size=3,
)


@given(st.lists(steps_of_choices, min_size=1, max_size=4), st.integers(1, 10**6))
def test_what_is_shown_is_what_is_stored(steps: list[list[ChoiceEvent]], first: int) -> None:
    made = []
    for gains in steps:
        made.append(StepEvent("cmpl-1", 2, first, gains))
        first += len(gains)
    lines = events.join_lines([step.encode_line() for step in made])
    assert lines.count(b"\n") == len(steps) - 1
    decoded = list(events.decode_lines(lines))
    assert [job_id for job_id, _ in decoded] == ["cmpl-1"] * len(steps)
    joined = StepEvent.join(made)
    stored = events.decode(events.make_event(joined.sequence_number, joined.encode()))
    assert [choice for _, event in decoded for choice in event] == stored
    assert joined.encode() == events.encode_gains(joined.choices)
    assert [event for _, event in decoded] == [
        events.decode(events.encode_choices(step.sequence_number, step.choices)) for step in made
    ]


def test_an_end_has_the_time_of_its_entry() -> None:
    end = events.encode_end(9, "failed", JobError("worker_error", "a\nb"), Usage(1, 2))
    line = b'["cmpl-1",3,0,0,0,%b,"1500-3"]' % end
    ((job_id, event),) = events.decode_lines(line)
    error = JobError("worker_error", "a\nb")
    assert (job_id, event) == ("cmpl-1", EndEvent(9, "failed", error, Usage(1, 2), 1.5))
