"""docs/responses.md: its examples run one after another, as printed."""

import re
from typing import Any

import pytest

from tests.acceptance.service import ROOT, Installation

pytestmark = pytest.mark.acceptance
PAGE = (ROOT / "docs" / "responses.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_examples_run(service: Installation, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    printed = []
    for block in BLOCKS:
        text = block.replace("http://localhost:8000", service.url).replace("sk-...", service.key)
        exec(text, names)  # noqa: S102 - our own text
        printed.append(capsys.readouterr().out.strip())
    names["client"].close()
    first, again, conversation, _, rest, answer = printed
    assert first.startswith("resp_")
    assert again == "Another one."
    assert conversation == "['user', 'user', 'assistant']"
    assert rest in ("response.completed", "response.incomplete")
    assert answer in ("odd", "even")
