"""Ids that carry the time of their row."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.models.timed_ids import new_id, read_time

MICROSECOND = timedelta(microseconds=1)
EPOCH, LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
ID = "file-01a219167b247852a145c0928e03fc43"
TIMES = st.integers(0, (LAST - EPOCH) // MICROSECOND).map(lambda n: EPOCH + n * MICROSECOND)


@given(TIMES)
def test_the_time_is_exact(at):
    assert read_time(new_id("file-", at)) == at


@given(TIMES, TIMES)
def test_ids_sort_as_their_times(one, other):
    assert (new_id("", one) < new_id("", other)) == (one < other) or one == other


def test_an_id_is_a_uuid_of_version_7():
    made = {new_id("") for _ in range(100)}
    assert len(made) == 100
    for each in made:
        value = uuid.UUID(each)
        assert (value.version, value.variant) == (7, uuid.RFC_4122)


@pytest.mark.parametrize(
    "other",
    [
        "", "file-", "file-af8717eab5fb4bca98d84418b3eda7e8", f"{ID}0", ID[:-1], ID.upper(),
        f"batch_{'f' * 12}7{'f' * 3}8{'f' * 15}", f"{ID}-1",
    ],
)  # fmt: skip
def test_another_id_has_no_time(other):
    assert read_time(ID) is not None
    assert read_time(other) is None
