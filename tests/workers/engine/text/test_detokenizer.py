from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from tests.workers.engine import tiny_models
from workers.engine.text.detokenizer import Vocabulary
from workers.engine.text.windowed_detokenizers import ByteFallbackDetokenizer

BYTE_LEVEL = tiny_models.byte_level_tokenizer()
SENTENCEPIECE = tiny_models.sentencepiece_tokenizer()
STRIPPED = tiny_models.byte_level_tokenizer()  # only its own decoder knows what is stripped
STRIPPED.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
TOKENIZERS = {"byte-level": BYTE_LEVEL, "sentencepiece": SENTENCEPIECE, "stripped": STRIPPED}
VOCABULARIES = {
    name: Vocabulary(tokenizer, tokenizer.get_vocab_size() + 8)
    for name, tokenizer in TOKENIZERS.items()
}

names = st.sampled_from(sorted(TOKENIZERS))


def increments(
    vocabulary: Vocabulary, ids: list[int], skip: bool = True, prompt: tuple[int, ...] = ()
) -> list[str]:
    detokenizer = vocabulary.detokenizer(prompt, skip)
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


@given(
    st.sampled_from(["byte-level", "stripped"]),
    st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1), max_size=24),
    st.booleans(),
)
def test_increments_of_any_tokens_make_the_whole_decoding(
    name: str, ids: list[int], skip: bool
) -> None:
    expected = TOKENIZERS[name].decode(ids, skip_special_tokens=skip)
    assert "".join(increments(VOCABULARIES[name], ids, skip)) == expected


@given(st.lists(st.sampled_from([0, 1, *range(258, 287)]), max_size=24), st.booleans())
def test_increments_of_words_make_the_whole_decoding(ids: list[int], skip: bool) -> None:
    expected = SENTENCEPIECE.decode(ids, skip_special_tokens=skip)
    assert "".join(increments(VOCABULARIES["sentencepiece"], ids, skip)) == expected


@given(names, st.text())
def test_text_comes_back_in_whole_characters(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    parts = increments(VOCABULARIES[name], ids)
    assert "".join(parts) == tokenizer.decode(ids)
    assert not any("\ufffd" in part for part in parts) or "\ufffd" in tokenizer.decode(ids)


@given(names, st.text("a \n\u20ac\u6771\ufffd\U0001f600"))
def test_a_text_may_hold_replacement_characters(name: str, text: str) -> None:
    ids = TOKENIZERS[name].encode(text, add_special_tokens=False).ids
    assert "".join(increments(VOCABULARIES[name], ids)) == TOKENIZERS[name].decode(ids)


@given(names, st.text("a \n\u00e9\u20ac\u6771\U0001f600", min_size=1), st.integers(0, 60))
def test_a_prompt_may_end_anywhere_in_a_text(name: str, text: str, at: int) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    at = min(at, len(ids))
    whole = tokenizer.decode(ids)
    # With byte fallback, a character that is not whole replaces those before it.
    shown = max(num_common(whole, tokenizer.decode(ids[:n])) for n in range(at + 1))
    parts = increments(VOCABULARIES[name], ids[at:], prompt=tuple(ids[:at]))
    assert "".join(parts) == whole[shown:]


def num_common(one: str, other: str) -> int:
    """The length of the beginning that two texts share."""
    pairs = zip(one, other, strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", ["\U0001f600" * 4, "\u6771\u4eac" * 3, "the \u20ac\n\u20ac"])
def test_the_output_goes_on_in_characters_of_bytes(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    before = tuple(tokenizer.encode(text, add_special_tokens=False).ids)
    after = tokenizer.encode("\U0001f600\u20ac", add_special_tokens=False).ids
    after = after[1:] if name == "sentencepiece" else after  # without the word mark
    assert "".join(increments(VOCABULARIES[name], after, prompt=before)) == "\U0001f600\u20ac"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_character_that_the_prompt_began_and_the_output_does_not_end(name: str) -> None:
    """The prompt's own text already shows U+FFFD for it."""
    tokenizer = TOKENIZERS[name]
    euro = tokenizer.encode("x\u20ac", add_special_tokens=False).ids[-3:]
    letter = tokenizer.encode("x", add_special_tokens=False).ids[-1:]
    for prompt, ids, expected in ((euro[:2], letter, "x"), (euro[:2], [], ""), (euro, [], "")):
        assert "".join(increments(VOCABULARIES[name], ids, prompt=tuple(prompt))) == expected


@given(names, st.lists(st.integers(0, 280), max_size=12), st.integers(0, 12))
def test_a_copy_goes_on_like_the_original(name: str, ids: list[int], at: int) -> None:
    detokenizer = VOCABULARIES[name].detokenizer(tuple(ids[:at]), True)
    for token_id in ids[:at]:
        detokenizer.push(token_id)
    copy = detokenizer.copy()
    rest = [detokenizer.push(i) for i in ids[at:]] + [detokenizer.flush()]
    assert [copy.push(i) for i in ids[at:]] + [copy.flush()] == rest


def test_a_character_of_many_tokens_appears_with_the_last(tokenizer: Tokenizer) -> None:
    vocabulary = Vocabulary(tokenizer, tokenizer.get_vocab_size())
    ids = [tokenizer.token_to_id(char) for char in "ðŁĲĳ"]  # the four bytes of one sheep
    assert increments(vocabulary, ids) == ["", "", "", "🐑", ""]
    assert increments(vocabulary, ids[:2]) == ["", "", "\ufffd"]


@pytest.mark.parametrize(("skip", "expected"), [(True, ""), (False, tiny_models.TOOL)])
def test_special_tokens(tokenizer: Tokenizer, skip: bool, expected: str) -> None:
    vocabulary = Vocabulary(tokenizer, tokenizer.get_vocab_size())
    tool = tokenizer.token_to_id(tiny_models.TOOL)
    assert "".join(increments(vocabulary, [tool], skip)) == expected


def test_ids_beyond_the_tokenizer_say_nothing() -> None:
    for vocabulary in VOCABULARIES.values():
        assert "".join(increments(vocabulary, [vocabulary.size - 1])) == ""


def test_the_prompt_keeps_the_space_in_front_of_the_first_word() -> None:
    prompt = tuple(SENTENCEPIECE.encode("the", add_special_tokens=False).ids)
    ids = SENTENCEPIECE.encode("of the", add_special_tokens=False).ids
    assert "".join(increments(VOCABULARIES["sentencepiece"], ids, prompt=prompt)) == " of the"
    assert "".join(increments(VOCABULARIES["sentencepiece"], ids)) == "of the"


def test_the_window_does_not_grow_with_the_text() -> None:
    detokenizer = VOCABULARIES["sentencepiece"].detokenizer((), True)
    assert isinstance(detokenizer, ByteFallbackDetokenizer)
    for token_id in SENTENCEPIECE.encode("the of " * 50, add_special_tokens=False).ids:
        detokenizer.push(token_id)
    assert len(detokenizer.window._window) <= 2  # its size shows nowhere else


def byte_ids(data: bytes) -> list[int]:
    return [SENTENCEPIECE.token_to_id(f"<0x{byte:02X}>") for byte in data]


LONG_RUNS = {
    "special": [1] * 400,
    "no token": [SENTENCEPIECE.get_vocab_size()] * 400,
    "never a character": byte_ids(b"\xff") * 400,
    "half characters": byte_ids(b"\xe2\x82") * 200,
    "a word mark": [258, *byte_ids(b"\xf0\x9f\x98\xff\x80" * 80)],
    "broken once": byte_ids(b"\xff" + "\u20ac".encode() * 133),
}


@pytest.mark.parametrize("run", LONG_RUNS.values(), ids=LONG_RUNS)
def test_the_window_does_not_grow_while_no_character_is_complete(run: list[int]) -> None:
    vocabulary = VOCABULARIES["sentencepiece"]
    words = SENTENCEPIECE.encode("the of", add_special_tokens=False).ids
    detokenizer = vocabulary.detokenizer((), True)
    assert isinstance(detokenizer, ByteFallbackDetokenizer)
    parts = []
    for token_id in [*words, *run, *words]:
        parts.append(detokenizer.push(token_id))
        assert len(detokenizer.window._window) + len(detokenizer._character) <= 16
    parts.append(detokenizer.flush())
    whole = SENTENCEPIECE.decode([*words, *run, *words], skip_special_tokens=True)
    assert "".join(parts) == whole


def test_bytes_that_make_no_character_are_shown_as_they_come() -> None:
    parts = increments(VOCABULARIES["sentencepiece"], byte_ids(b"\xff") * 8)
    assert parts[4] != ""


def test_a_character_may_begin_in_the_prompt() -> None:
    prompt = tuple(byte_ids(b"\xe2\x82"))
    ids = [*byte_ids(b"\xac"), *SENTENCEPIECE.encode("the", add_special_tokens=False).ids]
    assert "".join(increments(VOCABULARIES["sentencepiece"], ids, prompt=prompt)) == "\u20ac the"


def test_the_prompt_is_not_repeated_before_a_character_that_begins_in_it() -> None:
    """Decoders replace the whole run of bytes, with the prompt's complete characters in it."""
    the = SENTENCEPIECE.encode("the", add_special_tokens=False).ids
    for before in ("\u20ac", "\n"):
        prompt = (*the, *byte_ids(before.encode()), *byte_ids(b"\xf0\x9f"))
        parts = increments(VOCABULARIES["sentencepiece"], byte_ids(b"\x98\x80"), prompt=prompt)
        assert "".join(parts) == "\U0001f600"


@pytest.mark.parametrize(
    ("skip", "spaces", "expected"),
    [(False, True, "a <A> <B> b <A>"), (False, False, "a <A><B> b <A>"), (True, False, "a b")],
)
def test_spaces_between_special_tokens(skip: bool, spaces: bool, expected: str) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<A>": 2, "<B>": 3}, "a"))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["<A>", "<B>"])
    whole = Vocabulary(tokenizer, 4).detokenizer((), skip, spaces)
    text = "".join(map(whole.push, [0, 2]))
    assert text + "".join(map(whole.copy().push, [3, 1, 2])) == expected
