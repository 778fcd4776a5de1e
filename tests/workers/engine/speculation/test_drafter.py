from workers.engine.core.draft import OWN, Guess, Support
from workers.engine.speculation.drafter import Place, candidates, support
from workers.engine.speculation.ngrams import LONGEST_MATCH, Match
from workers.engine.speculation.siblings import BORDER


def test_several_places_count_more_than_one_that_matches_a_little_longer() -> None:
    known = [7, 8, 8, 8]
    short = [Match(3, 3), Match(2, 3), Match(1, 3)]
    assert [c.token_id for c in candidates(known, [Match(0, 4), *short])] == [8, 7]
    assert [c.token_id for c in candidates(known, [Match(0, 12), *short])] == [7, 8]


def test_a_candidate_is_copied_from_its_longest_match_and_of_equal_ones_from_the_last() -> None:
    [candidate] = candidates([8, 8, 8], [Match(2, 3), Match(1, 5), Match(0, 5)])
    assert candidate.match == Match(1, 5)


def test_nothing_follows_the_end_of_an_output() -> None:
    assert candidates([7, BORDER], [Match(1, 1), Match(2, 1)]) == []


def test_support_is_what_the_places_agree_on() -> None:
    def of(*token_ids: int) -> Support:
        matches = [Match(i, 3) for i in range(len(token_ids))]
        first, *others = candidates(token_ids, matches)
        return support(first, others, len(matches))

    assert of(7) == Support.ALONE
    assert of(7, 7) == Support.ALL
    assert of(7, 7, 8) == Support.MOST
    assert of(7, 8) == Support.SOME


def test_a_place_goes_on_while_it_is_right() -> None:
    place = Place([5, 6, 7, 8, BORDER], 1, Guess(OWN, LONGEST_MATCH - 1), num_before=3)
    after = place.after([1, 2, 3, 6, 7])
    assert after is not None
    assert after.token_id == 8
    assert after.guess == Guess(OWN, LONGEST_MATCH)
    assert place.after([1, 2, 3, 6, 9]) is None
    assert after.after([1, 2, 3, 6, 7, 8]) is None
