"""The tables in docs/json-schema.md: every example does what its row says."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from completions.grammars import json_schema
from completions.grammars.exceptions import GrammarError
from completions.grammars.json_schema.rewriting.formats import PATTERNS
from completions.grammars.schema.keywords import KEYWORDS
from tests.completions.grammars.byte_matcher import accepts

TEXT = Path("docs/json-schema.md").read_text()


def rows(table: str) -> Iterator[list[str]]:
    _, _, rest = TEXT.partition(f"<!-- {table} -->\n")
    for line in rest.splitlines()[2:]:
        if not line.startswith("|"):
            break
        yield [cell.strip().strip("`") for cell in line.strip("|").split(" | ")]


@pytest.mark.parametrize("row", list(rows("enforced")), ids=lambda row: row[0])
def test_a_documented_keyword_accepts_and_refuses_its_examples(row: list[str]) -> None:
    _, _, schema, right, wrong = row
    grammar = json_schema.translate(json.loads(schema)).grammar
    assert accepts(grammar, right)
    assert not accepts(grammar, wrong)


@pytest.mark.parametrize("row", list(rows("refused")), ids=lambda row: row[0])
def test_a_documented_refusal_gives_its_reason(row: list[str]) -> None:
    _, schema, reason = row
    with pytest.raises(GrammarError, match=re.escape(reason)):
        json_schema.translate(json.loads(schema))


def test_every_keyword_has_a_row() -> None:
    named = {
        name
        for table in ("enforced", "refused")
        for row in rows(table)
        for name in re.findall(r"[$\w]+", row[0])
    }
    assert KEYWORDS.keys() - {"x-guidance"} <= named


def test_every_format_is_listed() -> None:
    _, _, section = TEXT.partition("## Formats")
    assert set(PATTERNS) <= set(re.findall(r"[\w-]+", section))
