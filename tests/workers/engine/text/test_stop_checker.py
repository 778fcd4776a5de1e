from typing import Any

import pytest

from completions.contract.sampling import SamplingParams
from completions.contract.stop_regex.syntax import RegexError
from workers.engine.text.finish import Finish, FinishReason
from workers.engine.text.stop_checker import StopChecker

EOS = frozenset({2, 3})


def checker(max_output_tokens: int = 10, **params: Any) -> StopChecker:
    return StopChecker(SamplingParams(**params), EOS, max_output_tokens)


def test_every_end_of_sequence_and_every_stop_id_ends() -> None:
    stops = checker(stop_token_ids=(7,))
    assert [stops.ends(token) for token in (2, 3, 7, 8)] == [True, True, True, False]


def test_ignore_eos_leaves_explicit_stop_ids() -> None:
    stops = checker(stop_token_ids=(3, 7), ignore_eos=True)
    assert [stops.ends(token) for token in (2, 3, 7)] == [False, True, True]
    assert stops.ids_to_avoid() == EOS


def test_min_tokens_defers_ids_and_strings() -> None:
    stops = checker(min_tokens=2, stop=("x",))
    stops.count()
    assert not stops.ends(2)
    assert stops.ids_to_avoid() == EOS
    assert stops.check_text("x") == ("x", None)
    stops.count()
    assert stops.ends(2)
    assert stops.ids_to_avoid() == frozenset()
    assert stops.check_text("yx") == ("y", Finish(FinishReason.STOP, "x"))


def test_peeking_changes_nothing() -> None:
    stops = checker(stop=("ab",))
    assert stops.check_text("a") == ("", None)
    assert stops.peek_text("b") == ("", Finish(FinishReason.STOP, "ab"))
    assert stops.check_text("c") == ("ac", None)


def test_a_pattern_returns_what_it_matched() -> None:
    stops = checker(stop_regex=(r"\d+;",))
    assert stops.check_text("a1") == ("a", None)
    assert stops.check_text("2;x") == ("", Finish(FinishReason.STOP, r"\d+;", "12;"))


def test_min_tokens_defers_patterns() -> None:
    stops = checker(min_tokens=1, stop_regex=("x",))
    assert stops.check_text("x") == ("x", None)
    stops.count()
    assert stops.check_text("ax") == ("a", Finish(FinishReason.STOP, "x", "x"))


def test_patterns_too_large_together_are_refused() -> None:
    pattern = "(?:a{990}|b)"
    checker(stop_regex=(pattern,) * 8)
    with pytest.raises(RegexError, match="too large"):
        checker(stop_regex=(pattern,) * 9)


def test_without_stop_strings_nothing_is_held() -> None:
    stops = checker()
    assert stops.check_text("abc") == stops.peek_text("abc") == ("abc", None)
    assert stops.flush() == ("", None)


@pytest.mark.parametrize("limit", [1, 3])
def test_the_last_token_of_the_limit_ends_a_choice(limit: int) -> None:
    stops = checker(max_output_tokens=limit)
    for _ in range(limit - 1):
        stops.count()
        assert stops.check_length() is None
    stops.count()
    assert stops.check_length() == Finish(FinishReason.LENGTH)
