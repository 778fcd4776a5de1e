"""The bytes of tokens, against the tokenizer's own decoding and llguidance's."""

import pytest
from llguidance import LLTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models

from completions.contract.token_bytes import TokenBytes, count_ids
from tests.completions.contract.tokenizers_of_each_kind import (
    ALL,
    END,
    TOOL,
    byte_level,
    word_marks,
)


@pytest.mark.parametrize("kind", ALL)
def test_the_bytes_of_a_texts_tokens_are_its_bytes(kind: str) -> None:
    tokenizer = ALL[kind]()
    read = TokenBytes(tokenizer)
    table = read.make_table(count_ids(tokenizer))
    for text in ("ab b", "naïve é語 \n\t", "<0x41>"):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        found = b"".join(table[id] for id in ids).decode()
        assert found.removeprefix(" ") == text
        assert [table[id] for id in ids] == list(map(read.get, ids))


@pytest.mark.parametrize("made", [byte_level, word_marks])
def test_llguidance_reads_the_same_bytes(made: type[Tokenizer]) -> None:
    tokenizer = made()
    theirs = LLTokenizer(tokenizer.to_str())
    read = TokenBytes(tokenizer)
    for id in range(tokenizer.get_vocab_size()):
        # llguidance marks special tokens with the byte 0xFF, which no text holds.
        if id not in read.special_ids and read.get(id) != b"\xff":
            assert read.get(id) == theirs.decode_bytes([id])


@pytest.mark.parametrize("kind", ALL)
def test_ids_without_a_token_have_no_bytes(kind: str) -> None:
    tokenizer = ALL[kind]()
    size = count_ids(tokenizer) + 5
    table = TokenBytes(tokenizer).make_table(size)
    ids = set(tokenizer.get_vocab().values())
    assert len(table) == size
    assert {id for id in range(size) if table[id]} == ids
    assert TokenBytes(tokenizer).get(size) == b""
    short = TokenBytes(tokenizer).make_table(10)
    assert short == table[:10]


@pytest.mark.parametrize("special", [False, True])
def test_an_added_token_is_decoded_like_any_other(special: bool) -> None:
    """Gemma's file lists runs of spaces among the added tokens."""
    tokenizer = word_marks()
    tokenizer.add_tokens([AddedToken("▁▁", special=special)])
    id = tokenizer.token_to_id("▁▁")
    assert tokenizer.decode([id, id], skip_special_tokens=False) == "   "  # less the first space
    read = TokenBytes(tokenizer)
    assert read.get(id) == read.make_table(count_ids(tokenizer))[id] == b"  "


def test_special_tokens_are_known() -> None:
    tokenizer = byte_level()
    ids = {tokenizer.token_to_id(END), tokenizer.token_to_id(TOOL)}
    assert TokenBytes(tokenizer).special_ids == ids


def test_only_some_tokenizers_have_bytes_for_each_token() -> None:
    assert TokenBytes(byte_level()).is_byte_level
    assert not TokenBytes(word_marks()).is_byte_level
    assert TokenBytes(word_marks()).is_exact
    pieces = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    assert not TokenBytes(pieces).is_exact
    pieces.decoder = decoders.WordPiece()
    assert not TokenBytes(pieces).is_exact
