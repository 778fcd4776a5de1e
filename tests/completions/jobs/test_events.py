"""The wire form of events."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from completions.contract.usage import Usage
from completions.jobs import events
from completions.jobs.events import ChoiceEvent, EndEvent, JobError

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
