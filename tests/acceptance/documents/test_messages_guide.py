"""docs/messages.md: its examples run one after another, as printed."""

import json

import pytest

from tests.acceptance.documents.guides import run_examples
from tests.acceptance.service import Installation

pytestmark = pytest.mark.acceptance


def test_the_examples_run(service: Installation, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run_examples("messages.md", service, capsys)
    first, streamed, continued, constrained, count = printed
    assert first.startswith("msg_")
    assert streamed
    assert continued
    text, called = constrained.rsplit("\n", 1)
    assert json.loads(text)["odd"] in (True, False)
    assert called in ("answer {'odd': True}", "answer {'odd': False}")
    assert int(count) > 0
