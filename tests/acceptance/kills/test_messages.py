"""kill -9 of the worker during a message's stream: it goes on as if nothing had happened."""

from typing import Any

import anthropic
import pytest

from benchmarks.service.scripted_worker import token
from tests.acceptance.service import MODEL, ScriptedInstallation

pytestmark = [pytest.mark.acceptance, pytest.mark.wide]

TOKENS = 100
TEXT = "".join(chr(token(3, 0, k)) for k in range(TOKENS))
BODY: dict[str, Any] = {
    "model": MODEL, "max_tokens": TOKENS, "messages": [{"role": "user", "content": "Go on."}],
    "extra_body": {"seed": 3},
}  # fmt: skip


def test_a_stream_survives_its_worker(scripted: ScriptedInstallation) -> None:
    texts: list[str] = []
    with (
        anthropic.Anthropic(base_url=scripted.url, api_key=scripted.key) as client,
        client.messages.stream(**BODY) as stream,
    ):
        for text in stream.text_stream:
            texts.append(text)
            if len(texts) == 12:
                scripted.kill_worker()
        message = stream.get_final_message()
    assert "".join(texts) == TEXT
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", TOKENS)
    scripted.wait_ready()
