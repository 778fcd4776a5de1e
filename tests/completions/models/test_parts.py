"""Long iterables in parts."""

from itertools import count

import pytest

from completions.models.parts import parts


@pytest.mark.parametrize(
    ("items", "expected"),
    [([], []), ([1], [[1]]), ([1, 2, 3, 4], [[1, 2], [3, 4]]), ([1, 2, 3], [[1, 2], [3]])],
)
def test_parts_have_the_given_size_but_the_last(items, expected):
    assert list(parts(items, 2)) == expected


def test_no_more_than_a_part_is_read_ahead():
    assert next(parts(count(), 3)) == [0, 1, 2]
