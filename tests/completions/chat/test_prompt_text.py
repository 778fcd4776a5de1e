"""Texts that know who wrote them: they behave as str does, and gain no trust."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.chat.prompt_text import FOREIGN, OWN, PromptText, concatenate, join, trust

SHORT = st.text("aB <>ß\n", max_size=6)
PARTS = st.lists(st.tuples(SHORT, st.booleans()), max_size=5)


def build(parts: list[tuple[str, bool]]) -> PromptText:
    return concatenate(trust(text) if is_own else text for text, is_own in parts)


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "a slice": lambda text: text[1:-1],
    "a step": lambda text: text[::-2],
    "a character": lambda text: text[0] if text else "",
    "strip": lambda text: text.strip(),
    "lstrip": lambda text: text.lstrip(" a"),
    "rstrip": lambda text: text.rstrip("\n>"),
    "removeprefix": lambda text: text.removeprefix("a"),
    "removesuffix": lambda text: text.removesuffix(">"),
    "replace": lambda text: text.replace("a", "<b>"),
    "replace once": lambda text: text.replace(" ", "", 1),
    "replace nothing": lambda text: text.replace("", "-"),
    "upper": lambda text: text.upper(),
    "lower": lambda text: text.lower(),
    "title": lambda text: text.title(),
    "capitalize": lambda text: text.capitalize(),
    "sum": lambda text: "a" + text + "b",
    "product": lambda text: 2 * text * 1,
    "join": lambda text: text.join(["a", "b", "c"]),
    "format": lambda text: f"{text}",
    "str": str,
    "split": lambda text: "|".join(text.split("a")),
    "split at white space": lambda text: "|".join(text.split()),
    "rsplit": lambda text: "|".join(text.rsplit(" ", 1)),
    "partition": lambda text: "|".join(text.partition("B")),
    "find": lambda text: text.find(">"),
    "equals": lambda text: (text == "a", hash(text), text in {"a": 1}),
}


@pytest.mark.represented_by("a slice", "replace", "join", "format", "find")
@pytest.mark.parametrize("name", OPERATIONS)
@given(PARTS)
def test_it_behaves_as_any_text(name: str, parts: list[tuple[str, bool]]) -> None:
    text = build(parts)
    result = OPERATIONS[name](text)
    assert result == OPERATIONS[name]("".join(part for part, _ in parts))
    if isinstance(result, PromptText):
        assert len(result.mask) == len(result)


@pytest.mark.represented_by("a slice", "replace", "join", "format", "find")
@pytest.mark.parametrize("name", OPERATIONS)
@given(PARTS)
def test_nothing_foreign_becomes_trusted(name: str, parts: list[tuple[str, bool]]) -> None:
    """Foreign characters are replaced by digits that nothing else writes."""
    foreign = build([(text if is_own else "7" * len(text), is_own) for text, is_own in parts])
    result = OPERATIONS[name](foreign)
    for text in result if isinstance(result, list) else [result]:
        if isinstance(text, PromptText):
            assert all(
                mask == FOREIGN for each, mask in zip(text, text.mask, strict=True) if each == "7"
            )


def test_what_the_template_wrote_stays_trusted() -> None:
    text = trust("<|") + "user" + trust("|>\n")
    assert text.strip().mask == "11000011"
    assert text.replace("user", trust("you")).mask == "11111111"
    assert text.replace("|", "!").mask == "100000011"
    assert [part.mask for part in text.split("s")] == ["110", "00111"]
    assert join(trust(", "), ["a", trust("b")]).mask == "0111"
    assert (trust("-") * 3).mask == OWN * 3
    assert trust("ß").upper() == "SS"
