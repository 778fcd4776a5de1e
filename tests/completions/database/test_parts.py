"""Long iterables in parts."""

from itertools import count

import pytest

from completions.database.parts import parts, portions


@pytest.mark.parametrize(
    ("items", "expected"),
    [([], []), ([1], [[1]]), ([1, 2, 3, 4], [[1, 2], [3, 4]]), ([1, 2, 3], [[1, 2], [3]])],
)
def test_parts_have_the_given_size_but_the_last(items, expected):
    assert list(parts(items, 2)) == expected


def test_no_more_than_a_part_is_read_ahead():
    assert next(parts(count(), 3)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ("", []),
        (["a", "b", "c", "d"], [["a", "b", "c"], ["d"]]),
        (["aaaa", "b", "c"], [["aaaa", "b"], ["c"]]),
        (["aaa", "bbb"], [["aaa"], ["bbb"]]),
        (["a", "too large", "b"], [["a"], ["too large"], ["b"]]),
    ],
)
def test_portions_are_within_both_limits_unless_one_item_is_larger(items, expected):
    assert list(portions(items, 3, 5, len)) == expected


def test_no_more_than_a_portion_and_one_item_is_read_ahead():
    assert next(portions(count(), 3, 100, lambda number: number)) == [0, 1, 2]
