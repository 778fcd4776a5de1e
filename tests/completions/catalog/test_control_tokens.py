"""Control tokens: those that a template wrote, told apart from texts that spell them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers

from completions.catalog.control_tokens import ControlTokens, find_control_tokens
from completions.catalog.entries import ModelEntry
from completions.catalog.model_files import ModelFiles

CONTROLS = ControlTokens({"<a>": 1, "<a>>": 2, "<b>": 3, "a>": 4})


@pytest.mark.parametrize(
    ("text", "mask", "pieces"),
    [
        ("", "", None),
        ("x<a>y", "11111", None),
        ("x<y", "000", None),
        ("x<a>y", "00000", ["x<a>y"]),
        ("<a><a>", "111000", ["", 1, "", "<a>"]),
        ("<a><a>", "000111", ["<a>", "", 1, ""]),
        ("<a>>", "1110", ["", 1, "", ">"]),
        ("<a>>b", "11111", None),
        ("<a>", "011", ["<", "", 4, ""]),
        ("<a>", "101", ["<", "a", ">"]),
    ],
)
def test_pieces(text: str, mask: str, pieces: list[str | int] | None) -> None:
    assert CONTROLS.split(text, mask) == pieces


@given(st.lists(st.tuples(st.sampled_from(["<a>", "<a", ">", "<b>", "x"]), st.booleans())))
def test_pieces_are_the_text(parts: list[tuple[str, bool]]) -> None:
    text = "".join(part for part, _ in parts)
    mask = "".join(str(int(is_own)) * len(part) for part, is_own in parts)
    pieces = CONTROLS.split(text, mask)
    if pieces is None:
        return
    names = {id: name for name, id in CONTROLS.ids.items()}
    assert "".join(names.get(each, each) for each in pieces) == text  # type: ignore[call-overload]
    at = 0
    for piece in pieces:
        length = len(piece) if isinstance(piece, str) else len(names[piece])
        if isinstance(piece, int):
            assert mask[at : at + length] == "1" * length
        at += length


def test_thousands_of_tokens_are_found_in_one_pass() -> None:
    names = [f"<|reserved_{i}|>" for i in range(5000)]
    controls = ControlTokens({name: i for i, name in enumerate(names)})
    text = "".join(names)
    assert controls.split(text, "1" * len(text)) is None
    pieces = controls.split(text + "<|reserved_7|>", "1" * len(text) + "0" * 14)
    assert pieces is not None
    assert [each for each in pieces if isinstance(each, int)] == list(range(5000))


def load(folder: Path, tokenizer: Tokenizer, template: str) -> ControlTokens:
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template)
    return find_control_tokens(ModelFiles(ModelEntry("m", folder), 10, 64, (), 0))


def test_tags_that_the_template_names_are_control_tokens(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"x": 0}, unk_token="x"))
    tokenizer.add_special_tokens([AddedToken("<s>")])
    tokenizer.add_tokens(["<think>", "<b>", "  ", "user"])
    controls = load(tmp_path, tokenizer, "<think>  user")
    assert controls.ids == {"<s>": 1, "<think>": 2}
    assert controls.tags == ("<think>",)
    assert controls.split("<b>", "000") is None


def test_a_text_that_becomes_a_control_token_is_found(tmp_path: Path) -> None:
    """A tokenizer may normalize a text before it looks for added tokens."""
    tokenizer = Tokenizer(models.WordLevel({"x": 0}, unk_token="x"))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.add_special_tokens([AddedToken("<s>", normalized=True)])
    wide = "\uff1cs\uff1e"
    assert tokenizer.encode(wide).ids == [1]
    controls = load(tmp_path, tokenizer, "")
    assert controls.split(wide, "000") == [wide]
    assert controls.split("<s>x", "1110") is None


def test_a_normalizer_can_make_one_control_token_and_hide_another(tmp_path: Path) -> None:
    """As many are found, but the one that the template wrote is not, and the user's is."""
    tokenizer = Tokenizer(models.WordLevel({"x": 0}, unk_token="x"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.add_special_tokens(
        [AddedToken("<S>", normalized=False), AddedToken("<e>", normalized=True)]
    )
    controls = load(tmp_path, tokenizer, "")
    assert controls.split("<S><E>", "111000") == ["", 1, "", "<E>"]
