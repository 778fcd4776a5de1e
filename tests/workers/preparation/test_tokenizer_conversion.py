"""Tokenizers in other forms become the same tokenizers in tokenizer.json."""

import json
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from tokenizers import Tokenizer

from tests.workers.tokenizer_files import (
    TEKKEN_PATTERN,
    TEXTS,
    train_ranks,
    write_ranks,
    write_sentencepiece,
    write_tekken,
)
from workers.preparation import tokenizer_conversion
from workers.preparation.tokenizer_conversion import ConversionError, convert_tokenizer

KIMI: dict[str, Any] = {
    "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
    "tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "eos_token": "[EOS]",
}  # fmt: skip
MORE = ["", "a", "  b  ", "x" * 50, "\x00\x01", *(text[i:] for text in TEXTS for i in (1, 4, 9))]


def write(folder: Path, config: dict[str, Any], settings: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def converted(folder: Path, source: str) -> Tokenizer:
    assert convert_tokenizer(folder) == source
    assert convert_tokenizer(folder) is None
    assert not list(folder.glob(".*")), "a partial file is left"
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_the_ranks_of_kimi_split_texts_as_tiktoken_does(tmp_path: Path) -> None:
    ranks = train_ranks(tokenizer_conversion._KIMI)
    write_ranks(tmp_path / "tiktoken.model", ranks)
    end = len(ranks)
    listed = {
        str(end): {"content": "[BOS]", "special": True},
        str(end + 2): {"content": "<think>", "special": False},
    }
    write(tmp_path, {"model_type": "kimi_k2", "vocab_size": end + 4},
          {**KIMI, "added_tokens_decoder": listed})  # fmt: skip
    tokenizer = converted(tmp_path, "tiktoken.model")
    reference = tiktoken.Encoding(
        "kimi", pat_str=tokenizer_conversion._KIMI, mergeable_ranks=ranks, special_tokens={}
    )
    for text in (*TEXTS, *MORE):
        ids = tokenizer.encode(text).ids
        assert ids == reference.encode(text), text
        assert tokenizer.decode(ids) == text
    added = tokenizer.get_added_tokens_decoder()
    assert {id: token.content for id, token in added.items()} == {
        end: "[BOS]", end + 1: f"<|reserved_token_{end + 1}|>", end + 2: "<think>",
        end + 3: f"<|reserved_token_{end + 3}|>",
    }  # fmt: skip
    assert [added[end + i].special for i in range(4)] == [True, True, False, True]
    assert tokenizer.encode("a[BOS]<think>").ids[-2:] == [end, end + 2]


@pytest.mark.parametrize("special", [None, ["<unk>", "<s>", "</s>", "[THINK]"]])
def test_tekken_has_control_tokens_first(tmp_path: Path, special: list[str] | None) -> None:
    ranks = write_tekken(tmp_path, special)
    tokenizer = converted(tmp_path, "tekken.json")
    used = dict(list(ranks.items())[:-10])  # those that the vocabulary has room for
    reference = tiktoken.Encoding(
        "tekken", pat_str=TEKKEN_PATTERN, mergeable_ranks=used, special_tokens={}
    )
    for text in (*TEXTS, *MORE):
        expected = [30 + id for id in reference.encode(text)]
        assert tokenizer.encode(text).ids == [1, *expected]
        assert tokenizer.decode([1, *expected]) == text
    third = "[THINK]" if special else "[INST]"
    assert tokenizer.encode(f"</s>{third}<SPECIAL_29>", add_special_tokens=False).ids == [2, 3, 29]
    assert tokenizer.get_vocab_size() == 30 + len(used)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings["eos_token"] == "</s>"
    assert ("pad_token" in settings) == (special is None)


def test_the_settings_beside_tekken_are_left_alone(tmp_path: Path) -> None:
    write_tekken(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "[INST]"}')
    converted(tmp_path, "tekken.json")
    assert (tmp_path / "tokenizer_config.json").read_text() == '{"eos_token": "[INST]"}'


UNKNOWN, CONTROL, USER, NORMAL, BYTE = 2, 3, 4, 1, 6
MARKS = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
BYTES = [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
WORDS = ["th", "he", "the", "▁the", "▁t", "▁c", "ca", "at", "cat", "▁cat", "ab", "abc", "bc"]
PIECES = [
    *MARKS, *BYTES,
    *((word, -float(i), NORMAL) for i, word in enumerate(WORDS)),
    *((letter, -100.0 - i, NORMAL) for i, letter in enumerate("▁abcdefghijklmnopqrstuvwxyz")),
    ("<tool>", 0.0, USER),
]  # fmt: skip


def segment(text: str) -> list[str]:
    """SentencePiece's algorithm: merge the neighbours whose joined piece has the best score, the
    first of equals; then characters without a piece become bytes."""
    scores = {piece: score for piece, score, kind in PIECES if kind == NORMAL}
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [
            (scores[parts[i] + parts[i + 1]], -i)
            for i in range(len(parts) - 1)
            if parts[i] + parts[i + 1] in scores
        ]
        if not pairs:
            break
        at = -max(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    found: list[str] = []
    for part in parts:
        found += [part] if part in scores else [f"<0x{byte:02X}>" for byte in part.encode()]
    return found


def test_a_sentencepiece_model_is_read_without_its_package(tmp_path: Path) -> None:
    write_sentencepiece(tmp_path / "tokenizer.model", PIECES)
    added = {str(len(PIECES)): {"content": "<|im_end|>", "special": True}}
    write(tmp_path, {"model_type": "llama"}, {"bos_token": "<s>", "added_tokens_decoder": added})
    tokenizer = converted(tmp_path, "tokenizer.model")
    for text in ("the cat", "abc cat the", "abcabc", "thecat é東 ", "x  y"):
        encoded = tokenizer.encode(text)
        assert encoded.tokens == ["<s>", *segment(text)]
        assert tokenizer.decode(encoded.ids) == text
    assert tokenizer.encode("<tool><|im_end|>").ids[-1] == len(PIECES)
    decoder = tokenizer.get_added_tokens_decoder()
    assert [decoder[i].special for i in (1, len(PIECES) - 1, len(PIECES))] == [True, False, True]


def test_a_sentencepiece_model_may_have_no_first_token(tmp_path: Path) -> None:
    write_sentencepiece(tmp_path / "tokenizer.model", PIECES)
    write(tmp_path, {"model_type": "llama"}, {"add_bos_token": False})
    assert converted(tmp_path, "tokenizer.model").encode("the").tokens == ["▁the"]


def test_a_sentencepiece_model_may_add_no_space(tmp_path: Path) -> None:
    write_sentencepiece(tmp_path / "tokenizer.model", PIECES, prefix=False)
    write(tmp_path, {"model_type": "llama"}, {"add_bos_token": False})
    tokenizer = converted(tmp_path, "tokenizer.model")
    assert tokenizer.encode("the cat").tokens == ["the", "▁cat"]
    assert tokenizer.decode(tokenizer.encode("the cat").ids) == "the cat"


def test_transformers_converts_a_vocabulary_with_its_merges(tmp_path: Path) -> None:
    write(tmp_path, {"model_type": "gpt2"}, {"tokenizer_class": "GPT2Tokenizer"})
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    assert converted(tmp_path, "vocab.json").encode("aba").ids == [2, 0]


def fails(folder: Path, reason: str) -> None:
    with pytest.raises(ConversionError, match=reason):
        convert_tokenizer(folder)
    assert not (folder / "tokenizer.json").exists()


def test_what_cannot_be_converted_says_why(tmp_path: Path) -> None:
    write(tmp_path, {"model_type": "llama"}, {})
    fails(tmp_path, r"none of tokenizer\.json, tekken\.json")
    model = tmp_path / "tokenizer.model"
    write_ranks(model, train_ranks(TEKKEN_PATTERN, merges=2))
    fails(tmp_path, r"tokenizer\.model has the ranks of tiktoken, and does not say how")
    write_sentencepiece(model, PIECES, model_type=1)
    fails(tmp_path, r"tokenizer\.model cannot be converted: only BPE without")
    write_sentencepiece(model, PIECES, character_map=b"abc")
    fails(tmp_path, r"tokenizer\.model cannot be converted: only BPE without")
    write_sentencepiece(model, PIECES)
    whole = model.read_bytes()
    for cut in (1, 100, len(whole) - 3):
        model.write_bytes(whole[:cut])
        fails(tmp_path, r"tokenizer\.model cannot be converted: ")
    model.write_bytes(whole)
    wrong = {"7": {"content": "<|im_end|>"}}
    write(tmp_path, {"model_type": "llama"}, {"added_tokens_decoder": wrong})
    fails(tmp_path, r"<\|im_end\|> has the id 7 in tokenizer_config\.json only")
