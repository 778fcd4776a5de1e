import re
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from completions.contract.stop_regex.automaton import RegexSearch, compile_regex
from workers.engine.text.stop_text import StopText, StringSearch, TextStop, compile_string

pieces = st.lists(st.text("ab", max_size=4), max_size=12)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3)


def first_stop(text: str, stops: list[str]) -> tuple[int, str] | None:
    """Where to cut, found the slow way: the earliest end, the longest stop string there."""
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            longest = max(matches, key=len)
            return end - len(longest), longest
    return None


def strings(stops: Sequence[str], trim: bool = True) -> StopText:
    return StopText([StringSearch(compile_string(stop)) for stop in stops], [], trim)


def stream(stops: StopText, pieces: Sequence[str]) -> tuple[str, TextStop | None]:
    shown = ""
    for piece in pieces:
        text, stop = stops.push(piece)
        shown += text
        if stop is not None:
            return shown, stop
    return shown + stops.flush(), None


@given(pieces, stop_lists)
def test_streamed_text_is_the_text_cut_at_the_first_stop(
    pieces: list[str], stops: list[str]
) -> None:
    text = "".join(pieces)
    found = first_stop(text, stops)
    expected = (text, None) if found is None else (text[: found[0]], TextStop(found[1]))
    assert stream(strings(stops), pieces) == expected


@given(pieces, stop_lists)
def test_only_what_could_begin_a_stop_string_is_held_back(
    pieces: list[str], stops: list[str]
) -> None:
    stops_text = strings(stops)
    text = shown = ""
    for piece in pieces:
        text += piece
        new, stop = stops_text.push(piece)
        shown += new
        if stop is not None:
            return
        held = text[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)
        assert not any(
            stop.startswith(text[start:]) for start in range(len(shown)) for stop in stops
        )


@given(pieces, stop_lists, st.integers(0, 12))
def test_stops_that_end_while_unarmed_are_ordinary_text(
    pieces: list[str], stops: list[str], armed_from: int
) -> None:
    stops_text = strings(stops)
    shown = ""
    unarmed = len("".join(pieces[:armed_from]))
    text = "".join(pieces)
    for i, piece in enumerate(pieces):
        new, stop = stops_text.push(piece, armed=i >= armed_from)
        shown += new
        if stop is not None:
            end = len(shown) + len(stop.name)
            assert end > unarmed
            assert text[:end] == shown + stop.name
            return
    assert shown + stops_text.flush() == text


def test_a_copy_goes_its_own_way() -> None:
    stops = strings(["abc"])
    stops.push("xab")
    copy = stops.copy()
    assert copy.push("c") == ("", TextStop("abc"))
    assert stops.push("d") == ("abd", None)


PATTERNS = ["a+b", "b[ab]a", "(?s)bb.*a", "ba{2,3}", "^a", "[^a]{2}"]
rules = st.tuples(stop_lists, st.lists(st.sampled_from(PATTERNS), max_size=2), st.booleans())
Rules = tuple[list[str], list[str], bool]


def both(rules: Rules) -> StopText:
    stops, patterns, trim = rules
    found = [StringSearch(compile_string(stop)) for stop in stops]
    return StopText(found, [RegexSearch(compile_regex(p)) for p in patterns], trim)


def cut_slowly(text: str, rules: Rules) -> tuple[str, TextStop | None]:
    """The whole text cut at its first stop: by its end, then strings before patterns."""
    stops, patterns, trim = rules
    for end in range(1, len(text) + 1):
        strings = [stop for stop in stops if text[:end].endswith(stop)]
        if strings:
            stop = max(strings, key=len)
            return text[: end - len(stop) if trim else end], TextStop(stop)
        for pattern in patterns:
            if match := re.search(pattern, text[:end]):
                found = TextStop(pattern, match[0])
                return text[: match.start() if trim else end], found
    return text, None


@given(pieces, rules)
def test_streamed_text_is_the_text_cut_at_the_first_string_or_pattern(
    pieces: list[str], rules: Rules
) -> None:
    text = "".join(pieces)
    assert stream(both(rules), pieces) == cut_slowly(text, rules)
    assert stream(both(rules), text) == cut_slowly(text, rules)  # a character at a time


def test_nothing_is_held_back_where_stops_are_kept() -> None:
    stops = both((["abc"], ["x+y"], False))
    assert stops.push("zab") == ("zab", None)
    assert stops.push("xx") == ("xx", None)
    assert stops.copy().flush() == ""
    assert stops.push("xyz") == ("xy", TextStop("x+y", "xxxy"))


def test_a_pattern_is_held_back_while_it_can_go_on() -> None:
    stops = both((["never"], [r"\n\d+\."], True))
    assert stops.push("a\n1") == ("a", None)
    assert stops.push("2") == ("", None)
    assert stops.push("x") == ("\n12x", None)
    assert stops.push("\n3.") == ("", TextStop(r"\n\d+\.", "\n3."))


def test_a_string_goes_before_a_pattern_and_the_first_pattern_before_the_second() -> None:
    assert both((["b"], ["ab"], True)).push("ab") == ("a", TextStop("b"))
    assert both((["never"], ["b", "ab"], True)).push("ab") == ("a", TextStop("b", "b"))
