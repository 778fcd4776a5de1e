"""A validated request for completions: one type, whichever route it came by."""

from collections.abc import Sequence
from dataclasses import dataclass

from completions.chat.grammar import Calls, Thoughts
from completions.errors import FieldError
from completions.grammars import Constraint
from completions.requests.fields.constraint import ConstraintFields, constraint_of
from completions.requests.fields.ignored import IgnoredFields, ignored
from completions.requests.fields.logprobs import LogprobFields, LogprobSettings, logprob_settings
from completions.requests.fields.objects import Values
from completions.requests.fields.returns import ReturnFields, ReturnSettings, return_settings
from completions.requests.fields.routing import RoutingFields, RoutingSettings, routing_settings
from completions.requests.fields.sampling import (
    SamplingFields,
    SamplingSettings,
    sampling_settings,
)
from completions.requests.model import ModelRequestSerializer, RequestedModel

MAX_CHOICES = 1024
"""prompts x n of one request."""
FOREIGN_NAMES = {
    "sampling_params": "Send its fields at the top level of the body.",
    "text": "Use prompt.",
    "max_new_tokens": "Use max_tokens.",
    "guided_json": "Use json_schema.",
    "guided_regex": "Use regex.",
    "guided_grammar": "Use ebnf.",
    "guided_choice": "Use regex, or json_schema with an enum.",
    "structured_outputs": "Use json_schema, regex, ebnf or structural_tag.",
    "prompt_logprobs": "Use return_logprob with logprob_start_len.",
    "include_stop_str_in_output": "Use no_stop_trim.",
    "return_tokens_as_token_ids": "Use return_token_ids.",
    "bad_words": 'Use custom_logit_processor "disallowed_tokens" with token ids.',
    "allowed_token_ids": "Use a constraint, or logit_bias.",
    "extra_key": "Use cache_salt.",
}
"""Names that SGLang's native route and vLLM have, and what to send here instead."""
Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """How an answer is read back as a message."""

    calls: Calls | None
    thoughts: Thoughts | None
    hidden: Sequence[str]
    """Special tokens that stay in the text for the parser, which then removes them."""
    separate_reasoning: bool
    stream_reasoning: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    model: RequestedModel
    prompts: Prompts
    """Token ids."""
    truncated_tokens: int = 0
    """How many the prompts lost with `truncate_sequence`."""
    echo: bool = False
    constraint: Constraint | None
    sampling: SamplingSettings
    default_length: bool
    """Whether the route, not the client, chose max_tokens."""
    returns: ReturnSettings
    logprobs: LogprobSettings
    routing: RoutingSettings
    chat: ChatSettings | None = None
    ignored: tuple[str, ...]
    """Paths of given fields that have no effect."""


class GenerationFields(
    ModelRequestSerializer,
    ConstraintFields,
    SamplingFields,
    ReturnFields,
    LogprobFields,
    RoutingFields,
    IgnoredFields,
):
    """The fields of both routes. Each route adds the prompt in its form, `max_tokens` and
    `logprobs`, and its `check` makes a GenerationRequest."""

    def request(
        self,
        values: Values,
        prompts: Prompts,
        *,
        max_tokens: int,
        logprobs: tuple[int | None, bool],
        ignored_too: Sequence[str],
    ) -> GenerationRequest:
        """The request of validated fields, as far as both routes make it alike. `logprobs` are
        `top` and `of_prompt` of LogprobSettings. Raises FieldError and APIError."""
        model, principal = self.requested, self.principal
        constraint = constraint_of(values, model.files)
        names_length = self.is_given("max_tokens") or self.is_given("max_completion_tokens")
        if values["ignore_eos"] and not names_length:
            message = "this field is required with ignore_eos."
            raise FieldError("missing_required_parameter", message, "max_tokens")
        sampling = sampling_settings(values, model.entry, max_tokens)
        check_choices(len(prompts), sampling.n)
        return GenerationRequest(
            model=model,
            prompts=prompts,
            constraint=constraint,
            sampling=sampling,
            default_length=not names_length,
            returns=return_settings(values, principal, model.files, min(map(len, prompts))),
            logprobs=logprob_settings(values, prompts, *logprobs),
            routing=routing_settings(values, principal, model.entry, model.adapter, len(prompts)),
            ignored=ignored(values, *ignored_too),
        )


def check_choices(prompts: int, n: int, field: str = "n") -> None:
    """Raise FieldError when one request asks for too many choices, or candidates for them."""
    if prompts * n > MAX_CHOICES:
        message = f"is {n}; with {prompts} prompts it must be at most {MAX_CHOICES // prompts}."
        raise FieldError("integer_above_max_value", message, field)


def check_context(
    prompts: Prompts, max_tokens: int, max_model_len: int, field: str = "prompt"
) -> None:
    """Raise FieldError when a prompt and its completion may exceed the model's context."""
    index, longest = max(enumerate(map(len, prompts)), key=lambda pair: pair[1])
    if longest + max(max_tokens, 1) > max_model_len:
        which = "it" if len(prompts) == 1 else f"prompt {index}"
        message = (
            f"{which} has {longest} tokens and max_tokens is {max_tokens}, together more than the "
            f"model's context length of {max_model_len}. Shorten it or lower max_tokens."
        )
        raise FieldError("context_length_exceeded", message, field)
