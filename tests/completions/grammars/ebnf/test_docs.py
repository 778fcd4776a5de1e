"""The grammars in docs/ebnf.md are accepted, and what the page refuses is refused."""

import re
from pathlib import Path

import pytest

from completions.grammars import ebnf
from completions.grammars.exceptions import GrammarError

TEXT = Path("docs/ebnf.md").read_text()
GRAMMARS = re.findall(r"```\n(root ::= .*?)```", TEXT, re.DOTALL)


def test_the_page_has_grammars() -> None:
    assert len(GRAMMARS) == 2


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_grammar(grammar: str) -> None:
    assert ebnf.translate(grammar)


@pytest.mark.parametrize("option", ["temperature=0.5", "capture", "max_tokens=3"])
def test_refused_option(option: str) -> None:
    name = option.partition("=")[0]
    assert f"`{name}`" in TEXT.partition("refused, because")[2]
    with pytest.raises(GrammarError, match=name):
        ebnf.translate(f"root[{option}] ::= [a-z]+")
