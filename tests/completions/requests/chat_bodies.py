"""Bodies of chat completions, read without a service."""

from typing import Any

import pytest
from asgiref.sync import async_to_sync

from completions.accounts.keys import Principal
from completions.exceptions import APIError
from completions.requests.chat import ChatRequestObject
from completions.requests.generation import GenerationRequest
from completions.requests.preparation import PreparedRequest, prepare
from tests.completions.checking import new_checks

ANYONE = Principal(1, 1, "abcdef", (), None)
HI = [{"role": "user", "content": "hi"}]
F = {"type": "function", "function": {"name": "f"}}
SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}


def validate(body: dict[str, Any]) -> Any:
    full = {"model": "tiny", "messages": HI, **body}
    return async_to_sync(ChatRequestObject.validate_request)(new_checks(), full, ANYONE)


def refusal(body: dict[str, Any]) -> tuple[str, str | None]:
    with pytest.raises(APIError) as caught:
        validate(body)
    assert caught.value.message
    return caught.value.code, caught.value.param


def text(request: GenerationRequest) -> str:
    """The prompt: one token per byte."""
    (ids,) = request.job.prompts
    return request.model.files.tokenizer.decode(ids, skip_special_tokens=False)


def prepare_chat(**body: Any) -> PreparedRequest:
    full = {"model": "caller", "messages": HI, "max_tokens": 8, **body}
    return async_to_sync(prepare)(new_checks(), "/v1/chat/completions", full, ANYONE)
