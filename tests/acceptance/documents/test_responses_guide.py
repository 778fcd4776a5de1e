"""docs/responses.md: its examples run one after another, as printed."""

import pytest

from tests.acceptance.documents.guides import run_examples
from tests.acceptance.service import Installation

pytestmark = pytest.mark.acceptance


def test_the_examples_run(service: Installation, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run_examples("responses.md", service, capsys)
    first, again, conversation, compacted, _, rest, answer = printed
    assert first.startswith("resp_")
    assert again == "Another one."
    assert conversation == "['user', 'user', 'assistant']"
    assert compacted.startswith("response.compaction ['compaction'] ")
    assert rest in ("response.completed", "response.incomplete")
    assert answer in ("odd", "even")
