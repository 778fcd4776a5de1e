"""llguidance's tokenizer: padded rows, ids with gaps, and text that spells special tokens."""

import random

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from completions.contract import llguidance_tokenizer
from completions.contract.token_bytes import TokenBytes, count_ids
from tests.completions.contract.tokenizers_of_each_kind import ALL, END, TOOL

PADDING = 7


def allowed(matcher: LLMatcher) -> set[int]:
    mask = matcher.compute_bitmask()
    return {8 * i + bit for i, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1}


def forced_ids(built: LLTokenizer, text: str) -> list[int]:
    """The tokens of a text that a grammar forces."""
    matcher = LLMatcher(built, f'start: "{text}"', log_level=0)
    forced: list[int] = []
    while not matcher.is_stopped():
        ids = matcher.compute_ff_tokens() or sorted(allowed(matcher))[-1:]
        assert matcher.consume_tokens(ids), matcher.get_error()
        forced += ids
    return forced


@pytest.mark.parametrize("kind", ALL)
def test_forced_text_is_cut_as_plain_text(kind: str) -> None:
    tokenizer = ALL[kind]()
    read = TokenBytes(tokenizer)
    table = read.make_table(count_ids(tokenizer) + PADDING)
    end = tokenizer.token_to_id(END)
    built = llguidance_tokenizer.build(read, table, [end])
    for text in (TOOL, f"{END}a b", "ab é", "e\u0301 ab", "\u212b", "a▁b ▁▁日本"):
        forced = forced_ids(built, text)
        assert b"".join(table[id] for id in forced).decode() == text
        assert read.special_ids.isdisjoint(forced)


@pytest.mark.parametrize("kind", ALL)
def test_an_added_token_takes_no_white_space_along(kind: str) -> None:
    tokenizer = ALL[kind]()
    tokenizer.add_tokens([AddedToken("<tag>", lstrip=True, rstrip=True, special=False)])
    read = TokenBytes(tokenizer)
    table = read.make_table(count_ids(tokenizer) + PADDING)
    built = llguidance_tokenizer.build(read, table, [tokenizer.token_to_id(END)])
    forced = forced_ids(built, "ab  <tag> b")
    assert b"".join(table[id] for id in forced).decode() == "ab  <tag> b"


@pytest.mark.parametrize("kind", ALL)
def test_free_text_allows_each_token_and_the_end(kind: str) -> None:
    tokenizer = ALL[kind]()
    read = TokenBytes(tokenizer)
    table = read.make_table(count_ids(tokenizer) + PADDING)
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


CLASSES = ("[a-z]", "[A-Za-z]", "[a-z ]", "[A-Za-z0-9_-]", "[^a]", r"\w", ".", "é", "[A-Z][a-z]")
COUNTS = ("+", "{1,3}", "{4}", "{2,9}", "{6,14}", "{12,40}", "{0,80}")


def random_words(rng: random.Random, count: int) -> Tokenizer:
    """A vocabulary of every byte and of words of up to 17 bytes, a space in front or not."""
    letters = pre_tokenizers.ByteLevel.alphabet()
    words = dict.fromkeys(sorted(letters))
    while len(words) < len(letters) + count:
        made = rng.choice(("", "Ġ", "Ġ", "ĠĠ")) + "".join(
            rng.choices("abcXY0_-Ã©Ġ,", (9, 9, 9, 2, 2, 1, 1, 1, 1, 1, 1, 1), k=rng.randint(1, 15))
        )
        words[made] = None
    made = Tokenizer(models.BPE({word: id for id, word in enumerate(words)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(END), AddedToken(TOOL)])
    return made


def random_pattern(rng: random.Random) -> str:
    parts = [rng.choice(CLASSES) + rng.choice(COUNTS) for _ in range(rng.randint(1, 3))]
    pattern = rng.choice(("", " ", "-", ", ?")).join(parts)
    return pattern if rng.random() < 0.5 else f"({pattern} ){{1,{rng.randint(2, 9)}}}"


@pytest.mark.parametrize("seed", range(4))
def test_parts_worked_out_in_advance_change_no_mask(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - any patterns will do
    tokenizer = random_words(rng, 1500)
    read = TokenBytes(tokenizer)
    table = read.make_table(count_ids(tokenizer) + PADDING)
    built = llguidance_tokenizer.build(read, table, [tokenizer.token_to_id(END)])
    plain = built.with_slices([])
    masks = 0
    for _ in range(25):
        pattern = random_pattern(rng)
        grammar = f"start: /{pattern}/"
        if rng.random() < 0.3:
            schema = {"type": "string", "minLength": rng.randint(0, 9), "maxLength": 20}
            grammar = LLMatcher.grammar_from_json_schema(schema)
        matchers = [LLMatcher(each, grammar, log_level=0) for each in (built, plain)]
        for _ in range(8):
            first, second = (matcher.compute_bitmask() for matcher in matchers)
            assert first == second, pattern
            masks += 1
            if any(matcher.is_stopped() for matcher in matchers):
                break
            token = rng.choice(sorted(allowed(matchers[0])))
            for matcher in matchers:
                assert matcher.consume_token(token), pattern
    assert masks > 100


@pytest.mark.parametrize("kind", ALL)
def test_each_kind_of_tokenizer_has_the_parts(kind: str) -> None:
    tokenizer = ALL[kind]()
    read = TokenBytes(tokenizer)
    table = read.make_table(count_ids(tokenizer) + PADDING)
    built = llguidance_tokenizer.build(read, table, [tokenizer.token_to_id(END)])
    for pattern in ("[a-z ]{6}", "[A-Za-z_]{2,15}", "([a-z]{1,3} ){2}x", ".{0,20}"):
        first, second = (
            allowed(LLMatcher(each, f"start: /{pattern}/", log_level=0))
            for each in (built, built.with_slices([]))
        )
        assert first == second
