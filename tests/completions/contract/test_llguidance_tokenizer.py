"""llguidance's tokenizer: padded rows, ids with gaps, and text that spells special tokens."""

import pytest
from llguidance import LLMatcher
from tokenizers import Tokenizer, decoders, models

from completions.contract import llguidance_tokenizer
from completions.contract.token_bytes import TokenBytes, num_ids
from tests.completions.contract.tokenizers_of_each_kind import ALL, END, TOOL

PADDING = 7


def allowed(matcher: LLMatcher) -> set[int]:
    mask = matcher.compute_bitmask()
    return {8 * i + bit for i, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1}


@pytest.mark.parametrize("kind", ALL)
def test_forced_text_is_cut_as_plain_text(kind: str) -> None:
    tokenizer = ALL[kind]()
    read = TokenBytes(tokenizer)
    table = read.table(num_ids(tokenizer) + PADDING)
    end = tokenizer.token_to_id(END)
    for text in (TOOL, f"{END}a b", "ab é"):
        built = llguidance_tokenizer.build(read, table, [end])
        matcher = LLMatcher(built, f'start: "{text}"', log_level=0)
        forced: list[int] = []
        while not matcher.is_stopped():
            ids = matcher.compute_ff_tokens() or sorted(allowed(matcher))[-1:]
            assert matcher.consume_tokens(ids), matcher.get_error()
            forced += ids
        assert b"".join(table[id] for id in forced).decode() == text
        assert read.special_ids.isdisjoint(forced)


@pytest.mark.parametrize("kind", ALL)
def test_free_text_allows_each_token_and_the_end(kind: str) -> None:
    tokenizer = ALL[kind]()
    read = TokenBytes(tokenizer)
    table = read.table(num_ids(tokenizer) + PADDING)
    end = tokenizer.token_to_id(END)
    matcher = LLMatcher(
        llguidance_tokenizer.build(read, table, [end]), "start: /(?s:.*)/", log_level=0
    )
    existing = set(tokenizer.get_vocab().values())
    assert allowed(matcher) <= existing
    assert end in allowed(matcher)
    assert tokenizer.token_to_id("日本") in allowed(matcher)
    assert tokenizer.token_to_id(TOOL) not in allowed(matcher)
    tool = LLMatcher(
        llguidance_tokenizer.build(read, table, [end]),
        f"start: <[{tokenizer.token_to_id(TOOL)}]>",
        log_level=0,
    )
    assert allowed(tool) == {tokenizer.token_to_id(TOOL)}


def test_a_tokenizer_without_bytes_is_refused() -> None:
    pieces = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    pieces.decoder = decoders.WordPiece()
    with pytest.raises(ValueError, match="decodes bytes or word marks"):
        llguidance_tokenizer.build(TokenBytes(pieces), [b"", b"a"], [0])
