from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.contract.sampling import SamplingParams
from tests.workers.engine import tiny_models
from workers.engine.core.choice import Choice
from workers.engine.core.output import ChoiceDelta
from workers.engine.exceptions import GrammarError
from workers.engine.text.detokenizer import Vocabulary
from workers.engine.text.finish import Finish, FinishReason
from workers.engine.text.stop_checker import StopChecker

TOKENIZER = tiny_models.byte_level_tokenizer()
VOCABULARY = Vocabulary(TOKENIZER, TOKENIZER.get_vocab_size())
EOS = TOKENIZER.token_to_id(tiny_models.EOS)
SHEEP = [TOKENIZER.token_to_id(char) for char in "ðŁĲĳ"]


def ids(text: str) -> list[int]:
    """One token per ASCII character."""
    return [TOKENIZER.token_to_id(char) for char in text]


class ScriptedGrammar:
    """Complete after a number of tokens, or broken by one."""

    def leaves_only(self, token_id: int) -> bool:
        return token_id == self.forced

    def __init__(self, length: int, broken_by: int | None = None) -> None:
        self.length, self.broken_by = length, broken_by

    is_complete, forced, closes = False, None, False

    def consume(self, token_id: int) -> bool:
        if token_id == self.broken_by:
            raise GrammarError("no such token")
        self.length -= 1
        return self.length == 0


def make(limit: int = 100, grammar: ScriptedGrammar | None = None, **params: object) -> Choice:
    sampling = SamplingParams(max_tokens=200, **params)  # type: ignore[arg-type]
    detokenizer = VOCABULARY.detokenizer((), sampling.skip_special_tokens)
    return Choice(0, detokenizer, StopChecker(sampling, frozenset({EOS}), limit), grammar)


STOPS: list[dict[str, object]] = [
    {"stop": ("bc", "aa")},
    {"stop_regex": ("b.?c", "a{3}")},
    {"stop": ("cab",), "stop_regex": ("(?i)[AB]+c",)},
    {"stop_token_ids": (TOKENIZER.token_to_id("b"),), "stop_regex": ("ca",)},
]


def run(choice: Choice, token_ids: Iterable[int]) -> tuple[str, list[int], Finish | None]:
    """Feed tokens until the choice ends; its streamed text, tokens and end."""
    text, said = "", []
    for token_id in token_ids:
        choice.append(token_id)
        delta = choice.take_delta()
        assert delta is not None
        text, said = text + delta.text, said + delta.token_ids
        if choice.finish is not None:
            end = (delta.finish_reason, delta.matched_stop, delta.matched_stop_text)
            assert end == choice.finish
            break
    return text, said, choice.finish


def test_the_end_of_sequence_is_a_token_but_no_text() -> None:
    for skip in (True, False):
        tokens = [*ids("ab"), EOS]
        end = run(make(skip_special_tokens=skip), tokens)
        assert end == ("ab", tokens, Finish(FinishReason.STOP, EOS))


def test_a_stop_id_that_is_text_is_trimmed() -> None:
    [b] = ids("b")
    end = run(make(stop_token_ids=(b,)), ids("abc"))
    assert end == ("a", ids("ab"), Finish(FinishReason.STOP, b))


@pytest.mark.parametrize(
    ("stop", "text", "finish"),
    [
        ({"stop": ("bc",)}, "abc", Finish(FinishReason.STOP, "bc")),
        ({"stop_regex": ("b.",)}, "abc", Finish(FinishReason.STOP, "b.", "bc")),
        ({"stop_token_ids": tuple(ids("b"))}, "ab", Finish(FinishReason.STOP, *ids("b"))),
    ],
)
def test_without_trimming_the_text_includes_the_stop(
    stop: dict[str, object], text: str, finish: Finish
) -> None:
    assert run(make(no_stop_trim=True, **stop), ids("abcd")) == (text, ids(text), finish)


def test_a_kept_end_of_sequence_shows_only_where_special_tokens_do() -> None:
    for skip, text in ((True, "a"), (False, f"a{tiny_models.EOS}")):
        choice = make(no_stop_trim=True, skip_special_tokens=skip)
        assert run(choice, [*ids("a"), EOS])[0] == text


def test_a_kept_stop_id_may_complete_a_stop_string() -> None:
    [b] = ids("b")
    end = run(make(no_stop_trim=True, stop_token_ids=(b,), stop=("ab",)), ids("abc"))
    assert end == ("ab", ids("ab"), Finish(FinishReason.STOP, "ab"))


def test_a_pattern_goes_before_a_stop_id_and_a_string_before_a_pattern() -> None:
    [b] = ids("b")
    end = run(make(stop_token_ids=(b,), stop_regex=("a.",)), ids("xab"))
    assert end == ("x", ids("xab"), Finish(FinishReason.STOP, "a.", "ab"))
    assert run(make(stop=("b",), stop_regex=("a.",)), ids("xab"))[0] == "xa"


def test_a_stop_string_goes_before_a_stop_id() -> None:
    [b] = ids("b")
    end = run(make(stop_token_ids=(b,), stop=("ab",)), ids("xab"))
    assert end == ("x", ids("xab"), Finish(FinishReason.STOP, "ab"))


def test_a_stop_string_goes_before_the_grammar_and_the_length() -> None:
    end = run(make(limit=2, grammar=ScriptedGrammar(2), stop=("b",)), ids("ab"))
    assert end == ("a", ids("ab"), Finish(FinishReason.STOP, "b"))


def test_the_grammar_goes_before_the_length_and_names_no_stop() -> None:
    end = run(make(limit=2, grammar=ScriptedGrammar(2)), ids("abc"))
    assert end == ("ab", ids("ab"), Finish(FinishReason.STOP))


def test_the_grammar_ends_before_min_tokens() -> None:
    end = run(make(grammar=ScriptedGrammar(1), min_tokens=5), ids("abc"))
    assert end == ("a", ids("a"), Finish(FinishReason.STOP))


def test_a_broken_grammar_is_an_error() -> None:
    [b] = ids("b")
    with pytest.raises(GrammarError):
        run(make(grammar=ScriptedGrammar(9, broken_by=b)), ids("ab"))


def test_ends_release_what_was_held_back() -> None:
    assert run(make(limit=2, stop=("bc",)), ids("ab"))[0] == "ab"
    assert run(make(stop=("bc",)), [*ids("ab"), EOS])[0] == "ab"
    assert run(make(limit=2), SHEEP)[0] == "\ufffd"


def test_even_the_rest_of_a_broken_character_may_complete_a_stop_string() -> None:
    end = run(make(limit=2, stop=("a\ufffd",)), [*ids("a"), SHEEP[0]])
    assert end == ("", [*ids("a"), SHEEP[0]], Finish(FinishReason.STOP, "a\ufffd"))


def test_nothing_new_is_no_delta() -> None:
    assert make().take_delta() is None


tokens = st.lists(st.sampled_from([*ids("abc"), *SHEEP, EOS]), min_size=1, max_size=20)
strings = st.lists(st.text("abc", min_size=1, max_size=3), max_size=2).map(tuple)
stops = st.one_of(st.fixed_dictionaries({"stop": strings}), st.sampled_from(STOPS))


@given(tokens, stops, st.booleans(), st.integers(1, 20), st.integers(0, 5))
def test_streaming_gives_what_one_delta_would(
    token_ids: list[int], stop: dict[str, object], keep: bool, limit: int, min_tokens: int
) -> None:
    params = {**stop, "no_stop_trim": keep, "min_tokens": min_tokens}
    streamed = run(make(limit, **params), token_ids)
    choice = make(limit, **params)
    for token_id in token_ids:
        if choice.append(token_id) is not None:
            break
    delta = choice.take_delta()
    assert delta is not None
    assert (delta.text, delta.token_ids, choice.finish) == streamed


@given(tokens, stops, st.booleans(), st.integers(0, 20))
def test_a_replay_continues_without_gap_or_repeat(
    token_ids: list[int], stop: dict[str, object], keep: bool, published: int
) -> None:
    params = {**stop, "no_stop_trim": keep}
    first = make(limit=15, **params)
    before, _, finish = run(first, token_ids[:published])
    if finish is not None:
        published = len(token_ids)
    whole = run(make(limit=15, **params), token_ids)
    second = make(limit=15, **params)
    assert second.replay(token_ids[:published]) == finish
    after, _, _ = run(second, [] if finish else token_ids[published:])
    assert (before + after, second.finish) == (whole[0], whole[2])


def test_a_replay_that_ends_gives_just_the_end() -> None:
    choice = make(stop=("b",))
    choice.replay(ids("ab"))
    assert choice.take_delta() == ChoiceDelta(0, [], "", FinishReason.STOP, "b")
