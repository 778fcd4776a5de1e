"""docs/responses.md: its examples run one after another, as printed."""

import pytest

from tests.acceptance.documents.guides import run_examples
from tests.acceptance.service import Installation

pytestmark = pytest.mark.acceptance


@pytest.mark.long
@pytest.mark.filterwarnings(r"ignore:connect\(\) must be used:DeprecationWarning")  # in openai
def test_the_examples_run(service: Installation, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run_examples("responses.md", service, capsys)
    first, again, conversation, compacted, connected, _, rest, answer = printed
    assert first.startswith("resp_")
    assert again == "Another one."
    assert conversation == "['user', 'user', 'assistant']"
    assert compacted.startswith("response.compaction ['compaction'] ")
    assert connected in ("response.completed", "response.incomplete")
    assert rest in ("response.completed", "response.incomplete")
    assert answer in ("odd", "even")
