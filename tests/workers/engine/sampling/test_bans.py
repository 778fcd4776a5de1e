import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.engine.rows import row, set_rows
from tests.workers.engine.sampling.test_logits_processors import apply
from workers.engine.core.bad_words import list_bad_tokens
from workers.engine.core.draft import Draft
from workers.engine.sampling.bans import AllowedTokens, BadWords, MinTokens

VOCABULARY = 8


def test_no_end_before_min_tokens() -> None:
    rows = [row([5], min_tokens=2, stop_token_ids=(3,)), row([5, 5], min_tokens=2), row()]
    changed = apply(MinTokens(), rows, torch.zeros(3, 4))
    assert changed.isneginf().tolist() == [
        [True, False, False, True],
        [False] * 4,
        [False] * 4,
    ]


def test_min_tokens_ends_while_the_rows_stay_the_same() -> None:
    min_tokens, seq = MinTokens(), row([5], min_tokens=2)
    set_rows(min_tokens, [seq])
    seq.token_ids.append(5)
    logits = torch.zeros(1, 4)
    min_tokens.apply(logits)
    assert not logits.any()


def test_min_tokens_leaves_constrained_rows_to_the_grammar() -> None:
    changed = apply(MinTokens(), [row(min_tokens=2, grammar=object())], torch.zeros(1, 4))
    assert not changed.any()


def test_only_allowed_tokens_are_left() -> None:
    rows = [row(), row(allowed_token_ids=(1, 3)), row(allowed_token_ids=(2,), grammar=object())]
    changed = apply(AllowedTokens(), rows, torch.arange(12.0).view(3, 4))
    assert changed.isneginf().tolist() == [
        [False] * 4,
        [True, False, True, False],
        [False] * 4,
    ]
    assert changed[1, 3] == 7


words = st.lists(
    st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), min_size=1, max_size=4
).map(tuple)


@given(words, st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), max_size=3))
def test_a_token_is_bad_if_it_completes_a_word(
    bad: tuple[tuple[int, ...], ...], output: list[int], drafted: list[int]
) -> None:
    seq = row(output, bad_words=bad)
    seq.draft = Draft(tuple(drafted))
    whole = [*output, *drafted]
    expected = {
        token for token in range(4) for word in bad if tuple([*whole, token][-len(word) :]) == word
    }
    assert list_bad_tokens(seq, len(drafted)) == expected


def test_bad_words_are_those_of_the_output_and_not_the_prompt() -> None:
    seq = row([5], prompt=[1, 2], bad_words=((2, 5, 3), (5, 4), (6,)))
    changed = apply(BadWords(), [row(), seq], torch.zeros(2, VOCABULARY))
    assert changed.isneginf().nonzero().tolist() == [[1, 4], [1, 6]]
    assert not apply(
        BadWords(), [row(bad_words=((1,),), grammar=object())], torch.zeros(1, 4)
    ).any()


def test_bad_words_leave_an_allowed_token() -> None:
    assert list_bad_tokens(row(bad_words=((1,), (2,)), allowed_token_ids=(1, 2))) == frozenset()
    assert list_bad_tokens(row(bad_words=((1,),), allowed_token_ids=(1, 2))) == {1}


@pytest.mark.parametrize(("bad", "needs"), [((), False), (((1,),), False), (((1,), (1, 2)), True)])
def test_words_of_several_tokens_need_the_last_one(
    bad: tuple[tuple[int, ...], ...], needs: bool
) -> None:
    processor = BadWords()
    set_rows(processor, [row(bad_words=bad)])
    assert processor.needs_tokens() is needs
