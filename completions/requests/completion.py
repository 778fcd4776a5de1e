"""The body of POST /v1/completions."""

from dataclasses import replace

from completions.contract.sampling import INTEGERS, MAX_TOP_LOGPROBS
from completions.errors import FieldError
from completions.requests import infilling
from completions.requests.fields.base import (
    BooleanField,
    IntegerField,
    ListField,
    ObjectField,
    TextField,
)
from completions.requests.fields.objects import Values
from completions.requests.fields.prompt import PromptField
from completions.requests.generation import (
    FOREIGN_NAMES,
    GenerationFields,
    GenerationRequest,
    Prompts,
    check_choices,
    check_context,
)


class CompletionRequestSerializer(GenerationFields):
    unsupported = {
        **FOREIGN_NAMES,
        "messages": "POST them to /v1/chat/completions.",
        "input_ids": "Use prompt.",
        "truncate_prompt_tokens": "Use truncate_sequence.",
    }

    prompt = PromptField(
        help_text="Token ids, or up to 256 arrays of them; nothing is prepended. Texts where the "
        "model's capability `text_prompts` says so."
    )
    max_tokens = IntegerField(
        range=INTEGERS["max_tokens"],
        help_text="Most tokens to generate, per choice; 0 only with echo.",
    )
    max_completion_tokens = IntegerField(
        required=False, min_value=0, help_text="The same as max_tokens."
    )
    best_of = IntegerField(
        required=False, min_value=1, max_value=INTEGERS["n"].high,
        help_text="Candidates per prompt, of which the n with the highest mean log probability "
        "per token are returned, the best first; all are counted. Not with stream.",
    )  # fmt: skip
    echo = BooleanField(default=False, help_text="Put the prompt's text before the completion's.")
    logprobs = IntegerField(
        required=False, min_value=0, max_value=MAX_TOP_LOGPROBS,
        help_text="Log probabilities of each token in the text, the prompt's too with echo, and "
        "of this many likeliest ones, natural logarithms of the unmodified distribution.",
    )  # fmt: skip
    truncate_sequence = BooleanField(
        default=False,
        help_text="Cut the beginning of prompts that do not fit the context with max_tokens.",
    )
    suffix = TextField(
        required=False,
        help_text="Text that follows the completion; for models with the capability `fim`.",
    )
    parallel_tool_calls = BooleanField(required=False, help_text="No effect.")
    tools = ListField(
        child=ObjectField(), required=False,
        help_text='No effect, and only with tool_choice "none"; chat completions use them.',
    )  # fmt: skip
    tool_choice = TextField(required=False, help_text='Only "none", which has no effect.')

    def check(self, values: Values) -> GenerationRequest:
        _check_tools(values)
        max_tokens = self._max_tokens(values)
        _check_echo(values, max_tokens)
        _check_best_of(values)
        context = self.requested.files.max_model_len
        truncates = values["truncate_sequence"]
        room = min(max_tokens, context - 1) if truncates else max_tokens
        prompts, truncated = self._prompts(values, context - room if truncates else None)
        request = self.request(
            values,
            prompts,
            max_tokens=max_tokens,
            logprobs=(values["logprobs"], values["echo"]),
            ignored_too=("parallel_tool_calls", "tools", "tool_choice"),
        )
        check_context(prompts, room, context)
        return replace(request, echo=values["echo"], truncated_tokens=truncated)

    def _max_tokens(self, values: Values) -> int:
        given: int = values["max_tokens"]
        other: int | None = values["max_completion_tokens"]
        if other is None:
            return given
        if self.is_given("max_tokens") and other != given:
            message = f"is {other}, but max_tokens is {given}; send one of them."
            raise FieldError("invalid_value", message, "max_completion_tokens")
        return other

    def _prompts(self, values: Values, most: int | None) -> tuple[Prompts, int]:
        """The prompts, cut to `most` tokens and with the suffix where the model reads it; and how
        many tokens were cut."""
        frame = infilling.frame(values["suffix"], self.requested.files)
        prompts: Prompts = values["prompt"]
        truncated = 0
        if most is not None and most > frame.length:
            cut = [prompt[frame.length - most :] for prompt in prompts]
            truncated = sum(map(len, prompts)) - sum(map(len, cut))
            prompts = cut
        return [frame.around(prompt) for prompt in prompts], truncated


def _check_tools(values: Values) -> None:
    for name in ("tools", "tool_choice"):
        if values[name] is not None and values["tool_choice"] != "none":
            message = "POST /v1/chat/completions to call tools, or send tool_choice: none."
            raise FieldError("unsupported_parameter", message, name)


def _check_echo(values: Values, max_tokens: int) -> None:
    if max_tokens == 0 and not values["echo"]:
        message = "must be at least 1 without echo."
        raise FieldError("integer_below_min_value", message, "max_tokens")
    if max_tokens == 0 and values["return_hidden_states"]:
        message = "needs a token to be generated; max_tokens is 0."
        raise FieldError("invalid_value", message, "return_hidden_states")
    if values["echo"] and values["suffix"] is not None:
        raise FieldError("invalid_value", "cannot be combined with echo.", "suffix")


def _check_best_of(values: Values) -> None:
    best_of = values["best_of"]
    if best_of is None:
        return
    if best_of < values["n"]:
        message = f"is {best_of}; it must be at least n ({values['n']})."
        raise FieldError("invalid_value", message, "best_of")
    if values["stream"]:
        raise FieldError("invalid_value", "cannot be combined with stream.", "best_of")
    check_choices(len(values["prompt"]), best_of, "best_of")
