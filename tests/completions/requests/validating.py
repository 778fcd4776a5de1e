"""A request's body through all its checks."""

from typing import Any

import pytest
from asgiref.sync import async_to_sync

from completions.accounts.keys import Principal
from completions.errors import APIError
from completions.requests.completion import CompletionRequestSerializer

ANYONE = Principal(1, 1, "abcdef", (), None)
LEAST = {"model": "tiny", "prompt": [1, 2]}
OF_THE_WORKER = ("request_id", "organization", "deadline", "published", "published_ends")


def validate(body: Any, principal: Principal = ANYONE) -> dict[str, Any]:
    return async_to_sync(CompletionRequestSerializer.validate_request)(body, principal)


def refusal(body: Any, principal: Principal = ANYONE) -> tuple[str, str | None]:
    """Code and param of the error."""
    with pytest.raises(APIError) as caught:
        validate(body, principal)
    assert caught.value.message
    return caught.value.code, caught.value.param
