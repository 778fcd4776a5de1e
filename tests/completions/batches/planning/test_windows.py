"""The order of batches, the forecast of their ends, and what is promised."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.batches.planning.windows import (
    OLDEST_SHARE,
    Errors,
    Queued,
    Track,
    Work,
    admit,
    divide,
    estimate_tokens,
    find_ends,
    find_spread,
    look_ahead,
    order,
)

NOW = 1000.0
TRACK = Track(Errors(), Errors())


def batch(
    name: str, seconds: float, window: float, *, created: float = 0.0, owner: int = 1, **more: bool
) -> Queued:
    return Queued(name, owner, created, NOW + window, seconds, **more)


def names(batches: list[Queued]) -> str:
    return "".join(each.id for each in batches)


def test_the_window_that_ends_first_goes_first() -> None:
    assert (
        names(order([batch("a", 10, 300), batch("b", 10, 200), batch("c", 10, 900)], NOW)) == "bac"
    )


def test_a_batch_without_a_chance_holds_up_none_that_has_one() -> None:
    late, passed = batch("a", 1000, 300), batch("b", 10, -5)
    assert names(order([late, passed, batch("c", 100, 400)], NOW)) == "cba"


def test_what_was_promised_goes_before_what_was_not() -> None:
    batches = [batch("a", 10, 100, is_promised=False), batch("b", 10, 500)]
    assert names(order(batches, NOW)) == "ba"


def test_the_oldest_batch_has_its_part() -> None:
    urgent, oldest = batch("a", 10, 100, created=5), batch("b", 10, 900, created=1)
    other = batch("c", 10, 500, created=3)
    assert divide([urgent, other, oldest]) == {"a": 1 - OLDEST_SHARE, "b": OLDEST_SHARE}
    assert divide([oldest, urgent]) == {"b": 1.0}
    assert divide([]) == {}


def test_ends_follow_the_order_and_the_shares() -> None:
    # The urgent one has 3/4 until 1000 + 40; the oldest, with 10 of 30 done, then runs alone.
    queue = [batch("a", 30, 100, created=5), batch("b", 30, 900, created=1)]
    assert find_ends(queue, NOW) == {"a": pytest.approx(1040), "b": pytest.approx(1060)}
    # Two organizations have half each.
    queue = [batch("a", 30, 100), batch("b", 60, 100, owner=2)]
    assert find_ends(queue, NOW) == {"a": pytest.approx(1060), "b": pytest.approx(1090)}


queues = st.lists(
    st.builds(
        Queued,
        id=st.uuids().map(str),
        organization_id=st.integers(1, 3),
        created=st.floats(0, 1000),
        due=st.floats(900, 5000),
        seconds=st.floats(0, 1000),
        is_promised=st.booleans(),
    ),
    max_size=12,
    unique_by=lambda each: each.id,
)


@given(queues)
def test_no_work_is_lost_or_done_twice(queue: list[Queued]) -> None:
    ends = find_ends(queue, NOW)
    assert set(ends) == {each.id for each in queue}
    whole = math.fsum(each.seconds for each in queue)
    assert all(end <= NOW + whole + 1e-3 for end in ends.values())
    if queue:  # some worker works until the last end
        assert max(ends.values()) == pytest.approx(NOW + whole, abs=1e-3)
    for each in queue:
        assert ends[each.id] >= NOW + each.seconds - 1e-3


@given(st.lists(st.floats(0.05, 20), max_size=80), st.floats(1, 1e5), st.floats(0.01, 0.99))
def test_seconds_and_probability_are_inverse(
    ratios: list[float], expected: float, probability: float
) -> None:
    errors = Errors(ratios)
    times = [errors.find_probability(expected, expected * factor / 10) for factor in range(60)]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= 1
    seconds = errors.find_seconds(expected, 0.9)
    if seconds > 0:
        assert errors.find_probability(expected, seconds * 1.001 + 0.1) >= 0.9 - 1e-6


def test_measured_errors_take_the_place_of_assumed_ones() -> None:
    assert 140 < Errors().find_seconds(100) < 240
    assert Errors([1.0] * 60).find_seconds(100) == pytest.approx(100)
    assert Errors([2.0] * 60).find_seconds(100) == pytest.approx(205)
    assert Errors([2.0] * 60 + [9.0] * 60).find_seconds(100) == pytest.approx(205)
    assert Errors([1.0] * 60).find_probability(100, 0) == 0


def test_errors_spread_with_the_window_of_what_is_promised() -> None:
    spreads = [find_spread(100, window, is_promised=True) for window in (0, 100, 200, 500, 9e5)]
    assert spreads == sorted(spreads)
    assert spreads[0] < spreads[2] < 1 < spreads[3] < spreads[4] == 2**0.5
    assert {find_spread(100, window, is_promised=False) for window in (0, 100, 1e6)} == {1.0}
    narrow, wide = (look_ahead([batch("a", 100, x)], TRACK, NOW)["a"] for x in (170, 9e5))
    assert narrow.done_by < wide.done_by


@given(st.floats(0.3, 1.4), st.floats(1, 1e5), st.floats(1, 1e5))
def test_errors_are_measured_in_terms_of_their_spread(
    spread: float, expected: float, took: float
) -> None:
    errors = Errors([Errors.measure(expected, took, spread)] * 60).widen(spread)
    assert errors.find_seconds(expected) == pytest.approx(took, rel=1e-6)


@given(st.lists(st.floats(0.05, 20), max_size=80), st.floats(1, 1e4))
def test_a_wider_window_is_more_probable(ratios: list[float], seconds: float) -> None:
    track = Track(Errors(ratios), Errors())
    outlooks = [
        look_ahead([batch("a", seconds, seconds * times / 4)], track, NOW)["a"]
        for times in range(60)
    ]
    found = [each.probability for each in outlooks]
    assert found == sorted(found)


def test_tokens_are_those_of_the_lines_that_have_not_ended() -> None:
    assert estimate_tokens(Work(100, 1000, 5000), 0.5) == 1000 + 2500
    assert estimate_tokens(Work(100, 1000, 5000, ended=50, completion=500), 0.5) == 500 + 500
    assert estimate_tokens(Work(100, 1000, 5000, ended=2, completion=2), 0.5) == 98 * (10 + 25)
    assert estimate_tokens(Work(100, 1000, 5000, ended=100, completion=9), 0.5) == 0


def test_a_batch_that_fits_is_promised_its_window() -> None:
    queued, outlook = admit([], batch("a", 100, 1000), TRACK, NOW)
    assert queued.is_promised
    assert outlook.probability > 0.9
    assert NOW + 100 < outlook.done_by < NOW + 300
    queued, outlook = admit([], batch("a", 100, 90), TRACK, NOW)
    assert not queued.is_promised
    assert outlook.probability < 0.5


def test_a_new_batch_takes_no_promise_away() -> None:
    held = batch("a", 300, 700)
    assert look_ahead([held], TRACK, NOW)["a"].is_in_time
    new = batch("b", 300, 650, created=NOW)  # it would end in time, and the other one late
    queued, outlook = admit([held], new, TRACK, NOW)
    assert not queued.is_promised
    after = look_ahead([held, queued], TRACK, NOW)
    assert after["a"] == look_ahead([held], TRACK, NOW)["a"]
    assert after["b"] == outlook
    short = batch("c", 20, 300, created=NOW)  # fits before it
    queued, outlook = admit([held], short, TRACK, NOW)
    assert queued.is_promised
    assert look_ahead([held, queued], TRACK, NOW)["a"].is_in_time


@given(queues)
def test_ends_are_those_of_a_pass_that_asks_for_the_parts_again(queue: list[Queued]) -> None:
    at, left, ends = NOW, {each.id: each for each in queue}, {}
    seconds = {each.id: each.seconds for each in queue}
    while left:
        owners = {each.organization_id for each in left.values()}
        parts = {
            id: part / len(owners)
            for owner in owners
            for id, part in divide(
                order((each for each in left.values() if each.organization_id == owner), NOW)
            ).items()
        }
        step = min(seconds[id] / part for id, part in parts.items())
        at += step
        for id, part in parts.items():
            seconds[id] -= step * part
            if seconds[id] <= 1e-9 * (1 + step):
                ends[id] = at
                del left[id]
    assert find_ends(queue, NOW) == pytest.approx(ends, abs=1e-3)


def test_thousands_of_batches_are_looked_at_once() -> None:
    queue = [batch(str(n), 1.0, 1e6 - n, created=n) for n in range(20_000)]
    assert max(find_ends(queue, NOW).values()) == pytest.approx(NOW + 20_000)
