"""POST /v1/tokenize and /v1/detokenize, in vLLM's shapes: how clients get token-ID prompts."""

from typing import Any

from rest_framework.response import Response

from completions.catalog.model_files import ModelFiles
from completions.chat import template
from completions.chat.template import ChatTemplateError
from completions.errors import APIError, FieldError
from completions.http.base import APIRequest, AsyncAPIView
from completions.models import Scope
from completions.requests import turns
from completions.requests.fields import (
    BooleanField,
    ChoiceField,
    ContentField,
    ListField,
    StrictSerializer,
    TextField,
)
from completions.requests.model import ModelRequestSerializer, find_model
from completions.requests.token_fields import TokenIdsField, token_ids

MOST_CHARACTERS = 1024 * 1024
"""Of a text that is tokenized, or what would fit the model, if that is more."""


class MessageSerializer(StrictSerializer):
    role = ChoiceField(choices=["system", "user", "assistant"], help_text="Who speaks.")
    content = ContentField(help_text="A string, or text parts that are joined.")


class TokenizeRequestSerializer(ModelRequestSerializer):
    prompt = TextField(required=False, help_text="Text; give this or messages.")
    messages = ListField(
        child=MessageSerializer(), required=False, min_length=1,
        help_text="A conversation, put into the model's chat template.",
    )  # fmt: skip
    add_generation_prompt = BooleanField(
        default=True, help_text="With messages: end where the assistant's answer begins."
    )
    add_special_tokens = BooleanField(
        required=False,
        help_text="Let the tokenizer add its own, such as BOS; default true for a prompt, false "
        "for messages, whose template writes them.",
    )

    def check(self, validated: dict[str, Any]) -> dict[str, Any]:
        text, messages = validated["prompt"], validated["messages"]
        if text is None and messages is None:
            message = "give prompt (a text) or messages."
            raise FieldError("missing_required_parameter", message, "prompt")
        if text is not None and messages is not None:
            raise FieldError("invalid_value", "cannot be combined with prompt.", "messages")
        if validated["add_special_tokens"] is None:
            validated["add_special_tokens"] = messages is None
        return validated


class DetokenizeRequestSerializer(ModelRequestSerializer):
    tokens = TokenIdsField(help_text="Token ids; special tokens stay in the text.")


class TokenizeView(AsyncAPIView):
    """Text or messages to token ids."""

    scope = Scope.INFERENCE

    async def post(self, request: APIRequest) -> Response:
        validated = await TokenizeRequestSerializer.validate_request(request.data, request.auth)
        model = find_model(validated["model"], request.auth)
        tokens = await turns.current().run(request.owner, _tokenize, model, validated)
        return Response(
            {"tokens": tokens, "count": len(tokens), "max_model_len": model.max_model_len}
        )


class DetokenizeView(AsyncAPIView):
    """Token ids to text."""

    scope = Scope.INFERENCE

    async def post(self, request: APIRequest) -> Response:
        validated = await DetokenizeRequestSerializer.validate_request(request.data, request.auth)
        model = find_model(validated["model"], request.auth)
        text = await turns.current().run(request.owner, _detokenize, model, validated["tokens"])
        return Response({"prompt": text})


def _tokenize(model: ModelFiles, validated: dict[str, Any]) -> list[int]:
    text = validated["prompt"]
    if text is None:
        try:
            text = template.render(
                model,
                validated["messages"],
                add_generation_prompt=validated["add_generation_prompt"],
            )
        except ChatTemplateError as error:
            raise APIError("invalid_value", f"messages: {error}.", "messages") from error
    path = "prompt" if validated["messages"] is None else "messages"
    try:
        return token_ids(model, text, path, validated["add_special_tokens"], MOST_CHARACTERS)
    except FieldError as error:
        raise error.api_error() from error


def _detokenize(model: ModelFiles, tokens: list[int]) -> str:
    text: str = model.tokenizer.decode(tokens, skip_special_tokens=False)
    return text
