"""POST /v1/tokenize and /v1/detokenize, in vLLM's shapes: how clients get token-ID prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rest_framework.response import Response

from completions.catalog.model_files import ModelFiles
from completions.chat import template
from completions.chat.template import ChatTemplateError
from completions.errors import APIError, FieldError
from completions.http.base import APIRequest, AsyncAPIView
from completions.models import Scope
from completions.requests import turns
from completions.requests.fields.base import BooleanField, ChoiceField, ListField, TextField
from completions.requests.fields.messages import ContentField, Message
from completions.requests.fields.objects import StrictSerializer, Values
from completions.requests.fields.tokens import TokenIdsField, token_ids
from completions.requests.model import ModelRequestSerializer

MOST_CHARACTERS = 1024 * 1024
"""A text may have this many characters even if the model's context cannot hold them."""


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    model: ModelFiles
    prompt: str | None
    messages: Sequence[Message]
    """Where there is no prompt."""
    add_generation_prompt: bool
    add_special_tokens: bool


@dataclass(frozen=True, slots=True)
class DetokenizeRequest:
    model: ModelFiles
    tokens: Sequence[int]


class MessageSerializer(StrictSerializer):
    role = ChoiceField(choices=["system", "user", "assistant"], help_text="Who speaks.")
    content = ContentField(help_text="A string, or text parts that are joined.")


class TokenizeRequestSerializer(ModelRequestSerializer):
    prompt = TextField(required=False, help_text="Text; send this or messages.")
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

    def check(self, values: Values) -> TokenizeRequest:
        text, messages = values["prompt"], values["messages"]
        if text is None and messages is None:
            message = "send prompt (a text) or messages."
            raise FieldError("missing_required_parameter", message, "prompt")
        if text is not None and messages is not None:
            message = "cannot be combined with prompt; send one of them."
            raise FieldError("invalid_value", message, "messages")
        special = values["add_special_tokens"]
        return TokenizeRequest(
            self.requested.files,
            text,
            messages or (),
            values["add_generation_prompt"],
            messages is None if special is None else special,
        )


class DetokenizeRequestSerializer(ModelRequestSerializer):
    tokens = TokenIdsField(help_text="Token ids; special tokens stay in the text.")

    def check(self, values: Values) -> DetokenizeRequest:
        return DetokenizeRequest(self.requested.files, values["tokens"])


class TokenizeView(AsyncAPIView):
    """Text or messages to token ids."""

    scope = Scope.INFERENCE

    async def post(self, request: APIRequest) -> Response:
        asked = await TokenizeRequestSerializer.validate_request(request.data, request.auth)
        tokens = await turns.current().run(request.owner, _tokenize, asked)
        context = asked.model.max_model_len
        return Response({"tokens": tokens, "count": len(tokens), "max_model_len": context})


class DetokenizeView(AsyncAPIView):
    """Token ids to text."""

    scope = Scope.INFERENCE

    async def post(self, request: APIRequest) -> Response:
        asked = await DetokenizeRequestSerializer.validate_request(request.data, request.auth)
        text = await turns.current().run(request.owner, _detokenize, asked)
        return Response({"prompt": text})


def _tokenize(asked: TokenizeRequest) -> list[int]:
    """Raises APIError."""
    text, path = asked.prompt, "prompt"
    if text is None:
        path, start = "messages", asked.add_generation_prompt
        try:
            text = template.render(asked.model, asked.messages, add_generation_prompt=start)
        except ChatTemplateError as error:
            raise APIError("invalid_value", f"messages: {error}.", "messages") from error
    try:
        return token_ids(asked.model, text, path, asked.add_special_tokens, MOST_CHARACTERS)
    except FieldError as error:
        raise error.api_error() from error


def _detokenize(asked: DetokenizeRequest) -> Any:
    return asked.model.tokenizer.decode(asked.tokens, skip_special_tokens=False)
