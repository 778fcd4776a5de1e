"""A request's body through all its checks."""

from collections.abc import Mapping
from typing import Any, Self

import pytest
from asgiref.sync import async_to_sync

from completions.accounts.keys import Principal
from completions.exceptions import APIError
from completions.requests.completion import CompletionRequestObject
from completions.requests.context import Context
from completions.requests.generation import GenerationRequest
from completions.requests.preparation import PreparedRequest, prepare
from tests.completions.checking import new_checks

ANYONE = Principal(1, 1, "abcdef", (), None)
LEAST = {"model": "tiny", "prompt": [1, 2]}
OF_THE_WORKER = ("request_id", "organization", "deadline", "published", "published_ends")


class _FieldValues(CompletionRequestObject):
    def make(self, values: Self, context: Context) -> Any:
        return values.list_values()


def field_values(body: Any) -> Mapping[str, Any]:
    """The value of every field, without the rules between fields."""
    values: Mapping[str, Any] = _FieldValues().validate_for(body, ANYONE)
    return values


def validate(body: Any, principal: Principal = ANYONE) -> GenerationRequest:
    request: GenerationRequest = async_to_sync(CompletionRequestObject.validate_request)(
        new_checks(), body, principal
    )
    return request


def prepared(body: Any, path: str = "/v1/completions") -> PreparedRequest:
    return async_to_sync(prepare)(new_checks(), path, body, ANYONE)


def refusal(body: Any, principal: Principal = ANYONE) -> tuple[str, str | None]:
    """Code and param of the error."""
    with pytest.raises(APIError) as caught:
        validate(body, principal)
    assert caught.value.message
    return caught.value.code, caught.value.param
