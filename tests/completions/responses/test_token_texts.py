"""Offsets of a prompt's tokens in its text."""

from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer

from completions.responses.token_texts import TokenTexts
from tests.completions.contract.tokenizers_of_each_kind import ALL, END, word_marks


def texts_of(tokenizer: Tokenizer) -> TokenTexts:
    model: Any = SimpleNamespace(tokenizer=tokenizer)
    return TokenTexts(model)


@pytest.mark.parametrize("kind", ALL)
def test_offsets_are_those_of_the_decoded_text(kind: str) -> None:
    tokenizer = ALL[kind]()
    ids = tokenizer.encode(f"ab é 日本{END}c").ids
    expected = [len(tokenizer.decode(ids[:i]).rstrip("\ufffd")) for i in range(len(ids))]
    assert texts_of(tokenizer).find_offsets(ids) == expected


def test_bytes_that_a_later_one_makes_invalid() -> None:
    tokenizer = word_marks()
    pieces = ("a", "<0xDE>", "<0x82>", "<0x95>", "b", "▁b", "<0xDE>", "<0x82>", "b")
    ids = [tokenizer.token_to_id(piece) for piece in pieces]
    offsets = texts_of(tokenizer).find_offsets(ids)
    assert offsets == sorted(offsets)
    assert offsets[:3] == [0, 1, 1]
    assert offsets[-1] <= len(tokenizer.decode(ids))
