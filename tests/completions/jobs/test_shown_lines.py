"""Lines of a step: what a worker writes is what a web process reads."""

from hypothesis import given
from hypothesis import strategies as st

from completions.contract.usage import Usage
from completions.jobs import events, shown_lines
from completions.jobs.events import ChoiceEvent, EndEvent, JobError
from completions.jobs.execute import StepEvent

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
choices = st.lists(
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


@given(st.lists(choices, min_size=1, max_size=4), st.integers(1, 10**6))
def test_what_is_shown_is_what_is_stored(steps: list[list[ChoiceEvent]], first: int) -> None:
    made = []
    for gains in steps:
        made.append(StepEvent("cmpl-1", 2, first, gains))
        first += len(gains)
    lines = shown_lines.join_lines([step.encode_line() for step in made])
    assert lines.count(b"\n") == len(steps) - 1
    decoded = list(shown_lines.decode_lines(b"7-0", lines))
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
    line = b'["cmpl-1",3,0,0,0,%b]' % end
    ((job_id, event),) = shown_lines.decode_lines(b"1500-3", line)
    error = JobError("worker_error", "a\nb")
    assert (job_id, event) == ("cmpl-1", EndEvent(9, "failed", error, Usage(1, 2), 1.5))
