import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.sampling.philox import philox4x32, stream_keys, uniform

WORD = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        # The known answers of philox4x32 with 10 rounds that Random123 ships (kat_vectors).
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([WORD] * 4, [WORD] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_known_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    words = philox4x32(np.array([counter], dtype=np.uint32), np.array([key], dtype=np.uint32))
    assert words.tolist() == [expected]


def test_the_key_is_not_changed() -> None:
    key = stream_keys([7])
    philox4x32(np.zeros((1, 4), dtype=np.uint32), key)
    assert key.tolist() == [[7, 0]]


def test_a_seed_fills_both_words_and_may_be_negative() -> None:
    assert stream_keys([2**32 + 5, -1, 2**64]).tolist() == [[5, 1], [WORD, WORD], [0, 0]]


@given(st.lists(st.tuples(*[st.integers(0, WORD)] * 4), min_size=1, max_size=5))
def test_a_row_does_not_depend_on_its_neighbours(rows: list[tuple[int, ...]]) -> None:
    seeds, *places = zip(*rows, strict=True)
    columns = [np.array(column, dtype=np.uint32) for column in places]
    together = uniform(stream_keys(list(seeds)), *columns)
    alone = [
        uniform(stream_keys([seeds[i]]), *(column[i : i + 1] for column in columns))[0]
        for i in range(len(rows))
    ]
    assert together.tolist() == alone
    assert all(0 <= value < 1 for value in alone)


def test_numbers_are_spread_evenly() -> None:
    positions = np.arange(20_000, dtype=np.uint32)
    zeros = np.zeros_like(positions)
    numbers = uniform(stream_keys([1]).repeat(len(positions), axis=0), positions, zeros, zeros)
    counts = np.bincount((numbers * 10).astype(int), minlength=10)
    assert abs(counts - 2_000).max() < 200  # 4.7 standard deviations
