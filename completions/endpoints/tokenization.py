"""POST /v1/tokenize and /v1/detokenize, with vLLM's fields."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import orjson

from completions.catalog import tokenization
from completions.catalog.model_files import ModelFiles
from completions.catalog.tokenization import TokenIds
from completions.delivery import rate_limits
from completions.exceptions import FieldError
from completions.http.base import APIRequest, AsyncAPIView
from completions.http.bodies import JSONResponse
from completions.models import Scope
from completions.requests.context import Context
from completions.requests.conversation import TEMPLATE_FIELDS, ConversationFields
from completions.requests.fields.base import BooleanField, Field, expect, read_each
from completions.requests.fields.chat.tools import assign_paths
from completions.requests.fields.lists import check_count
from completions.requests.fields.prompt import MAX_PROMPTS
from completions.requests.fields.tokens import (
    MAX_CHARACTERS,
    TokenIdsField,
    encode_checked,
    encode_prompt,
)
from completions.requests.model import ModelRequestObject


class Answer(NamedTuple):
    body: dict[str, object]
    ignored: Sequence[str] = ()
    """Paths of given fields that have no effect."""


class TextsField(Field[str | list[str] | None]):
    """One text, or an array of them."""

    accepts = {
        "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_PROMPTS},
        ]
    }

    def read(self, data: object, context: Context | None = None) -> object:
        if type(data) is str:
            return data
        texts = expect(data, list, "a string or an array of strings")
        if not texts:
            raise FieldError("must have at least 1 element.", code="empty_array")
        check_count(texts, MAX_PROMPTS)
        return read_each(texts, lambda each: expect(each, str, "a string"))


class TokenizeRequestObject(ConversationFields[Answer]):
    """Read as an Answer."""

    unsupported = {
        "chat_template": "The model's own template is used.",
        "continue_final_message": "Send add_generation_prompt: false to end after the messages.",
        "return_token_strs": "POST /v1/detokenize turns ids into text.",
    }

    prompt = TextsField("A text, or up to 256 of them; send this or messages.")
    add_generation_prompt = BooleanField(
        "With messages: end where the assistant's answer begins.", default=True
    )
    add_special_tokens = BooleanField(
        "Let the tokenizer add its own, such as BOS; default true for a prompt, false "
        "for messages, whose template writes them."
    )

    def make(self, values: Self, context: Context) -> Answer:
        model, text, messages = context.model.files, values.prompt, values.messages
        if text is None and messages is None:
            message = "send prompt (texts) or messages."
            raise FieldError(message, "prompt", code="missing_required_parameter")
        if text is not None and messages is not None:
            raise FieldError("cannot be combined with prompt. Send only one.", "messages")
        if text is not None or not messages or type(messages[0]) is int:
            return _tokenize_raw(values, model)
        if values.thinking is not None and values.thinking.budget_tokens is not None:
            message = "has no effect on the tokens of messages; leave it out."
            raise FieldError(message, "thinking.budget_tokens", code="unsupported_value")
        tools = assign_paths(values.tools or ())
        calls, ignored = self.make_calls(values, model, tools), self.list_unread(values, context)
        prompt = self.render_conversation(values, model, calls, tools, values.add_generation_prompt)
        ids = encode_prompt(model, prompt, bool(values.add_special_tokens), MAX_CHARACTERS)
        return _make_answer(model, ids, ignored)


def _tokenize_raw(values: TokenizeRequestObject, model: ModelFiles) -> Answer:
    """Return the tokens of a text without a template."""
    text, special = values.prompt, values.add_special_tokens
    source = "messages" if text is None else "prompt"
    for name in ("tools", "tool_choice", *TEMPLATE_FIELDS):
        if getattr(values, name) is not None:
            raise FieldError(f"needs an array of messages, not {source}.", name)
    if text is None:
        if special is not None:
            raise FieldError("needs prompt, not messages that are a string.", "add_special_tokens")
        messages = values.messages
        return _make_answer(model, TokenIds(len(messages), orjson.dumps(messages)))
    adds = special is not False
    if type(text) is str:
        return _make_answer(model, encode_checked(model, text, "prompt", adds, MAX_CHARACTERS))
    if (characters := sum(map(len, text))) > MAX_CHARACTERS:
        message = (
            f"has {characters} characters in all; it may have at most {MAX_CHARACTERS}. Send "
            "several requests."
        )
        raise FieldError(message, "prompt")
    several = [
        encode_checked(model, each, f"prompt[{index}]", adds, MAX_CHARACTERS)
        for index, each in enumerate(text)
    ]
    tokens, counts = [ids.to_fragment() for ids in several], [ids.count for ids in several]
    return Answer({"tokens": tokens, "count": counts, "max_model_len": model.max_model_len})


def _make_answer(model: ModelFiles, ids: TokenIds, ignored: Sequence[str] = ()) -> Answer:
    sizes = {"count": ids.count, "max_model_len": model.max_model_len}
    return Answer({"tokens": ids.to_fragment(), **sizes}, ignored)


class DetokenizeRequestObject(ModelRequestObject[Answer]):
    """Read as an Answer."""

    always_long = True

    tokens = TokenIdsField("Token ids; special tokens stay in the text.", required=True)

    def make(self, values: Self, context: Context) -> Answer:
        ids = values.tokens
        return Answer({"prompt": tokenization.decode(context.model.files, ids)})


class TokenizeView(AsyncAPIView):
    """Converts text or messages to token ids."""

    scope = Scope.INFERENCE
    body: type[ModelRequestObject[Answer]] = TokenizeRequestObject

    async def post(self, request: APIRequest) -> JSONResponse:
        self.headers.update(await rate_limits.count_request(request.process, request.auth))
        answer = await self.body.validate_request(
            request.process.checks, request.data, request.auth
        )
        if answer.ignored:
            self.headers["x-ignored-params"] = ", ".join(answer.ignored)
        return JSONResponse(answer.body)


class DetokenizeView(TokenizeView):
    """Converts token ids to text."""

    body = DetokenizeRequestObject
