import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from tests.workers.engine import tiny_models
from workers.engine.text.detokenizer import Vocabulary, WindowedDetokenizer

BYTE_LEVEL = tiny_models.byte_level_tokenizer()
SENTENCEPIECE = tiny_models.sentencepiece_tokenizer()
TOKENIZERS = {"byte-level": BYTE_LEVEL, "sentencepiece": SENTENCEPIECE}
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


@given(st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1), max_size=24), st.booleans())
def test_increments_of_any_tokens_make_the_whole_decoding(ids: list[int], skip: bool) -> None:
    expected = BYTE_LEVEL.decode(ids, skip_special_tokens=skip)
    assert "".join(increments(VOCABULARIES["byte-level"], ids, skip)) == expected


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


@given(names, st.lists(st.integers(0, 280), max_size=12), st.integers(0, 12))
def test_a_copy_goes_on_like_the_original(name: str, ids: list[int], at: int) -> None:
    detokenizer = VOCABULARIES[name].detokenizer((), True)
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
    detokenizer = WindowedDetokenizer(SENTENCEPIECE, ())
    for token_id in SENTENCEPIECE.encode("the of " * 50, add_special_tokens=False).ids:
        detokenizer.push(token_id)
    assert len(detokenizer._window) <= 2  # its size shows nowhere else


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
    assert isinstance(detokenizer, WindowedDetokenizer)
    parts = []
    for token_id in [*words, *run, *words]:
        parts.append(detokenizer.push(token_id))
        assert len(detokenizer._window) <= 16
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
