"""POST /v1/tokenize and /v1/detokenize, with vLLM's fields."""

from typing import Any

from completions.chat import template
from completions.chat.template import ChatTemplateError
from completions.exceptions import FieldError
from completions.http.base import APIRequest, AsyncAPIView
from completions.http.bodies import JSONResponse
from completions.models import Scope
from completions.requests.fields.base import BooleanField, ChoiceField, ListField, TextField
from completions.requests.fields.messages import ContentField
from completions.requests.fields.objects import StrictObject, Values
from completions.requests.fields.tokens import TokenIdsField, token_ids
from completions.requests.model import ModelRequestObject

MOST_CHARACTERS = 1024 * 1024
"""Characters that a text may always have, even if the model's context cannot hold them."""


class MessageObject(StrictObject):
    role = ChoiceField("Who speaks.", choices=["system", "user", "assistant"], required=True)
    content = ContentField("A string, or text parts that are joined.", required=True)


class TokenizeRequestObject(ModelRequestObject):
    """Validation returns the body of the response."""

    always_long = True
    prompt = TextField("Text; send this or messages.")
    messages = ListField(
        "A conversation, put into the model's chat template.",
        child=MessageObject(),
        not_empty=True,
    )
    add_generation_prompt = BooleanField(
        "With messages: end where the assistant's answer begins.", default=True
    )
    add_special_tokens = BooleanField(
        "Let the tokenizer add its own, such as BOS; default true for a prompt, false "
        "for messages, whose template writes them."
    )

    def check(self, values: Values) -> dict[str, Any]:
        model, text, messages = self.requested.files, values["prompt"], values["messages"]
        if text is None and messages is None:
            message = "send prompt (a text) or messages."
            raise FieldError(message, "prompt", code="missing_required_parameter")
        if text is not None and messages is not None:
            raise FieldError("cannot be combined with prompt; send one of them.", "messages")
        special, path = values["add_special_tokens"], "prompt"
        if text is None:
            path, start = "messages", values["add_generation_prompt"]
            try:
                text = template.render(model, messages, add_generation_prompt=start)
            except ChatTemplateError as error:
                raise FieldError(f"{error}.", path) from error
        special = path == "prompt" if special is None else special
        tokens = token_ids(model, text, path, special, MOST_CHARACTERS)
        return {"tokens": tokens, "count": len(tokens), "max_model_len": model.max_model_len}


class DetokenizeRequestObject(ModelRequestObject):
    """Validation returns the body of the response."""

    always_long = True

    tokens = TokenIdsField("Token ids; special tokens stay in the text.", required=True)

    def check(self, values: Values) -> dict[str, Any]:
        tokenizer = self.requested.files.tokenizer
        return {"prompt": tokenizer.decode(values["tokens"], skip_special_tokens=False)}


class TokenizeView(AsyncAPIView):
    """Converts text or messages to token ids."""

    scope = Scope.INFERENCE
    body: type[ModelRequestObject] = TokenizeRequestObject

    async def post(self, request: APIRequest) -> JSONResponse:
        return JSONResponse(await self.body.validate_request(request.data, request.auth))


class DetokenizeView(TokenizeView):
    """Converts token ids to text."""

    body = DetokenizeRequestObject
