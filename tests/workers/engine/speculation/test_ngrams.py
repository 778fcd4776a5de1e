from hypothesis import given
from hypothesis import strategies as st

from workers.engine.speculation.ngrams import LONGEST_MATCH, Match, NgramIndex


def index_of(*token_ids: int) -> NgramIndex:
    index = NgramIndex()
    index.extend(token_ids)
    return index


def test_longer_matches_come_first() -> None:
    assert index_of(1, 2, 3, 8, 9, 3, 4).find([7, 1, 2, 3]) == [Match(3, 3), Match(6, 1)]


def test_of_equal_matches_the_later_one_comes_first() -> None:
    assert index_of(5, 1, 5, 2, 5, 3).find([5]) == [Match(5, 1), Match(3, 1), Match(1, 1)]


def test_only_the_last_places_are_remembered() -> None:
    index = index_of(*[5, 1] * 50)
    assert [match.position for match in index.find([5])] == list(range(99, 83, -2))


def test_nothing_is_found_for_an_unknown_token() -> None:
    assert index_of(1, 2, 3).find([4]) == []
    assert index_of().find([4]) == []
    assert index_of(1).find([]) == []


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 3), max_size=20))
def test_what_is_found_agrees_with_the_ending(known: list[int], ending: list[int]) -> None:
    matches = index_of(*known).find(ending)
    assert bool(matches) == bool(ending and ending[-1] in known)
    assert len({match.position for match in matches}) == len(matches)
    for match in matches:
        before = known[: match.position]
        longest = 0
        while longest < min(len(before), len(ending), LONGEST_MATCH):
            if before[-1 - longest] != ending[-1 - longest]:
                break
            longest += 1
        assert match.length == longest > 0
