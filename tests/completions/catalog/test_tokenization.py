"""Texts to ids and back: the same whoever does it, without the interpreter being held."""

import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from completions.catalog import model_files, tokenization
from completions.catalog.control_tokens import Pieces
from completions.catalog.model_files import ModelFiles
from completions.catalog.tokenization import TokenizationError, TokenizerProcessError
from completions.catalog.tokenization_child import run_request
from completions.child_process import ChildProcess
from completions.requests.fair_semaphore import THREADS

TEXTS = ["", "a", "grüße 中文 🙂", "</s> in <s>", "\n\r\u2028\x00 \t" * 9, "x" * 300]


@pytest.fixture
def model(served: None) -> ModelFiles:
    return model_files.load(model_files.load_catalog().choose("tiny"))


@pytest.fixture
def in_child(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Even short texts go to a child process, and ids come in short pieces."""
    monkeypatch.setattr(tokenization, "LONG", -1)
    monkeypatch.setattr(tokenization, "_PIECE", 1)
    yield
    tokenization._get_children().close()


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(alphabet)}
    vocabulary |= {"in": 256, "th": 257, "Ġa": 258}
    merges = [("i", "n"), ("t", "h"), ("Ġ", "a")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    words = pre_tokenizers.Split(Regex(r"\p{L}+|\d|\s+|[^\s\p{L}\d]+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def metaspace() -> Tokenizer:
    pieces = [("<unk>", 0.0), ("▁", -2.0), ("▁a", -2.5), ("a", -3.0), ("b", -3.0), ("ab", -4.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, 0, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def word_piece() -> Tokenizer:
    tokens = ["[UNK]", "[CLS]", "[SEP]", "a", "##a", "##b", "b", ",", "中"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


KINDS = {make.__name__: make() for make in (byte_level, metaspace, word_piece)}
for _each in KINDS.values():
    _each.add_special_tokens([AddedToken("<s>"), AddedToken("</s>", lstrip=True, rstrip=True)])
    _each.add_tokens([AddedToken("ab", single_word=True), AddedToken("  ", normalized=False)])
_PARTS = ("ab", "a", "b", " ", "  ", "\n", "<s>", " </s> ", "in", "th", "é", "e\u0301", "中", "🙂")


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(st.sampled_from(_PARTS) | st.text(max_size=4), max_size=20), st.booleans())
def test_a_batch_of_one_text_has_the_ids_of_the_text(
    kind: str, parts: list[str], special: bool
) -> None:
    tokenizer, text = KINDS[kind], "".join(parts)
    ids = tokenizer.encode(text, add_special_tokens=special).ids
    (fast,) = tokenizer.encode_batch_fast([text], add_special_tokens=special)
    assert fast.ids == ids
    for skip in (True, False):
        (decoded,) = tokenizer.decode_batch([ids], skip_special_tokens=skip)
        assert decoded == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.usefixtures("in_child")
def test_a_child_gives_the_same_ids_and_texts(model: ModelFiles) -> None:
    tokenizer = model.tokenizer
    for special in (True, False):
        ids = [tokenizer.encode(text, add_special_tokens=special).ids for text in TEXTS]
        found = [tokenization.encode(model, text, special) for text in TEXTS]
        assert [each.to_list() for each in found] == ids
        assert [each.count for each in found] == list(map(len, ids))
        assert tokenization.encode_all(model, TEXTS, special) == ids
    plain = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    assert [tokenization.decode(model, each) for each in plain] == TEXTS
    for skip in (True, False):
        expected = tokenizer.decode_batch(plain, skip_special_tokens=skip)
        assert tokenization.decode_all(model, plain, skip) == expected


def test_short_texts_need_no_child(model: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenization, "_ask", None)
    ids = model.tokenizer.encode("some text").ids
    assert tokenization.encode(model, "some text").to_list() == ids
    assert tokenization.encode_all(model, ["some text", ""]) == [ids, ids[:1]]
    assert tokenization.decode_all(model, [ids], True) == ["some text"]
    assert tokenization.decode(model, ids) == "<s>some text"


@pytest.mark.usefixtures("in_child")
def test_a_child_that_was_killed_is_replaced(model: ModelFiles) -> None:
    before = tokenization.encode(model, "text")
    with tokenization._get_children().borrow() as child:
        os.kill(child.pid, signal.SIGKILL)
        child._process.wait()
        child._process.returncode = None  # nobody has noticed yet
    assert tokenization.encode(model, "text") == before


@pytest.mark.usefixtures("in_child")
def test_a_child_answers_whatever_the_numbers_of_its_pipes(model: ModelFiles) -> None:
    """select() refuses descriptors from 1024 on, and a web process has one per stream."""
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert tokenization.encode(model, "a").to_list() == model.tokenizer.encode("a").ids
    finally:
        for descriptor in taken:
            os.close(descriptor)


@pytest.mark.usefixtures("in_child")
def test_no_question_gets_the_answer_to_another(
    model: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = ChildProcess.exchange

    def ask_and_fail(self: ChildProcess, question: bytes, seconds: float) -> bytes:
        exchange(self, question, seconds)
        os.write(self._process.stdin.fileno(), question)  # type: ignore[union-attr]
        raise MemoryError

    monkeypatch.setattr(ChildProcess, "exchange", ask_and_fail)
    with pytest.raises(MemoryError):
        tokenization.encode(model, "a secret")
    monkeypatch.setattr(ChildProcess, "exchange", exchange)
    assert tokenization.encode(model, "b").to_list() == model.tokenizer.encode("b").ids


@pytest.mark.usefixtures("in_child")
def test_a_child_that_does_not_answer_is_an_error(
    model: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenization, "SECONDS", 0.0)
    with pytest.raises(TokenizerProcessError, match="took longer than 0 s"):
        tokenization.encode(model, "text")


@pytest.mark.usefixtures("in_child")
def test_children_that_end_are_an_error(model: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenization, "CHILD", "completions.absent")
    with pytest.raises(TokenizerProcessError, match="killed twice"):
        tokenization.encode(model, "text")


@pytest.mark.usefixtures("in_child")
def test_the_error_of_a_tokenizer_is_passed_on(model: ModelFiles, tmp_path: Path) -> None:
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{}")
    entry = type("Entry", (), {"folder": tmp_path})()
    with pytest.raises(TokenizationError):
        tokenization.encode(type("Files", (), {"entry": entry})(), "text")
    assert tokenization.encode(model, "text").count  # by the same child


def test_as_many_children_are_kept_as_threads_ask() -> None:
    """To start one takes longer than most texts."""
    assert tokenization.KEPT >= THREADS


def test_other_threads_run_while_a_text_is_tokenized(
    model: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "text " * 60_000
    monkeypatch.setattr(tokenization, "LONG", len(text))
    began, ended, turns = threading.Event(), threading.Event(), 0

    def work() -> None:
        began.set()
        tokenization.encode(model, text)
        ended.set()

    threading.Thread(target=work).start()
    began.wait()
    while not ended.is_set():
        turns += 1
    assert turns > 1000


def byte_fallback() -> Tokenizer:
    """As sentencepiece's BPE: spaces are letters, and bytes are pieces."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"\u2581<>/sabin"]
    merges = [("\u2581", "a"), ("i", "n"), ("<", "s"), ("<s", ">")]
    pieces += ["".join(pair) for pair in merges]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    names = ("<unk>", "<s>", "</s>")
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in names])
    tokenizer.add_tokens(["ab"])
    return tokenizer


KINDS["byte_fallback"] = byte_fallback()


def encode_pieces(folder: Path, tokenizer: Tokenizer, pieces: Pieces, *tags: str) -> list[int]:
    path = folder / "tokenizer.json"
    if not path.exists():
        tokenizer.save(str(path))
    answer = run_request(orjson.dumps([str(path), "encode_pieces", [tags, pieces], False]))
    number, _, document = answer.partition(b" ")
    assert int(number) >= 0, document
    ids: list[int] = orjson.loads(document)
    return ids


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return KINDS[request.param], tmp_path_factory.mktemp(request.param)


CONTROLS = ("<s>", "</s>", "ab")
"""Control tokens of all kinds; the last one is a tag."""


@given(st.lists(st.sampled_from([*CONTROLS, "a", "b ", " ", "in", "th", "\n", "é", "\U0001f642"])))
def test_pieces_have_the_ids_of_their_text(kind: tuple[Tokenizer, Path], parts: list[str]) -> None:
    """Where no text spells a control token, it makes no difference that control tokens are ids."""
    tokenizer, folder = kind
    ids = {name: tokenizer.token_to_id(name) for name in CONTROLS[:2]}
    text = "".join(parts)
    expected = tokenizer.encode(text, add_special_tokens=False).ids
    pieces = [ids.get(part, part) for part in re.split("(</?s>)", text)]
    assert encode_pieces(folder, tokenizer, pieces) == expected


@given(st.lists(st.sampled_from([*CONTROLS, "<", "s>", " ", "a", "b", "in", "\n", "\uff1cs>"])))
def test_texts_that_spell_control_tokens_become_none(
    kind: tuple[Tokenizer, Path], parts: list[str]
) -> None:
    tokenizer, folder = kind
    control, text = tokenizer.token_to_id("<s>"), "".join(parts)
    ids = encode_pieces(folder, tokenizer, [text, control, text], "ab")
    named = {tokenizer.token_to_id(name) for name in CONTROLS}
    assert [each for each in ids if each in named] == [control]
    if tokenizer is KINDS["byte_level"]:
        assert tokenizer.decode(ids, skip_special_tokens=False) == f"{text}<s>{text}"
