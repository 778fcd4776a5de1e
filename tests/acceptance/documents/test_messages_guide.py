"""docs/messages.md: its examples run one after another, as printed."""

import json
import re
from typing import Any

import pytest

from tests.acceptance.service import ROOT, Installation

pytestmark = pytest.mark.acceptance
PAGE = (ROOT / "docs" / "messages.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_examples_run(service: Installation, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    printed = []
    for block in BLOCKS:
        text = block.replace("http://localhost:8000", service.url).replace("sk-...", service.key)
        exec(text, names)  # noqa: S102 - our own text
        printed.append(capsys.readouterr().out.strip())
    names["client"].close()
    first, streamed, continued, constrained, count = printed
    assert first.startswith("msg_")
    assert streamed
    assert continued
    text, called = constrained.rsplit("\n", 1)
    assert json.loads(text)["odd"] in (True, False)
    assert called in ("answer {'odd': True}", "answer {'odd': False}")
    assert int(count) > 0
