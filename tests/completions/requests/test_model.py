"""Which bodies are checked in a thread."""

from typing import Any

import pytest

from completions.endpoints.tokenization import DetokenizeRequestObject
from completions.requests.chat import ChatRequestObject
from completions.requests.completion import CompletionRequestObject

TEXT = "x" * 3000


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": TEXT},
        {"messages": [{"role": "user", "content": TEXT}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}]}]},
        {"messages": [{"role": "user", "content": "x" * 30}] * 100},
        {"tools": [{"function": {"parameters": {"enum": ["x"] * 300}}}]},
        {"prompt": [[1, 2]] * 9},
        {"prompt": ["x" * 1500] * 2},
        {"json_schema": {str(number): {} for number in range(300)}},
    ],
)
def test_long_texts_and_many_parts_take_long_wherever_they_are(body: dict[str, Any]) -> None:
    assert ChatRequestObject.is_long(body)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": list(range(8000))},
        {"prompt": [list(range(8000))] * 8},
        {"messages": [{"role": "user", "content": "x" * 500}] * 3, "max_tokens": 5},
    ],
)
def test_ids_and_short_texts_do_not(body: dict[str, Any]) -> None:
    assert not CompletionRequestObject.is_long(body)


def test_ids_always_take_long_to_turn_into_text() -> None:
    assert DetokenizeRequestObject.is_long({"tokens": [1]})
