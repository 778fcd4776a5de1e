"""A validated request for completions: one type for every route."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

from msgspec import structs

from completions.chat.grammar import Reasoning, ToolCalls
from completions.contract.job_request import JobRequest
from completions.exceptions import FieldError
from completions.grammars import Constraint
from completions.jobs.new_job import FLEX_PRIORITY
from completions.models.conversations import Item
from completions.requests.context import Context, RequestedModel
from completions.requests.fields import constraint as constraint_fields
from completions.requests.fields import logprobs as logprob_fields
from completions.requests.fields import returns as return_fields
from completions.requests.fields import sampling as sampling_fields
from completions.requests.fields import window as deadline_fields
from completions.requests.fields.base import format_number
from completions.requests.fields.constraint import ConstraintFields, parse_constraint
from completions.requests.fields.ignored import IgnoredFields
from completions.requests.fields.logprobs import (
    NO_LOGPROBS,
    LogprobFields,
    LogprobSettings,
    parse_logprobs,
)
from completions.requests.fields.returns import ReturnFields, ReturnSettings, parse_returns
from completions.requests.fields.routing import RoutingFields, parse_routing
from completions.requests.fields.sampling import SamplingFields, parse_sampling
from completions.requests.fields.session import SessionFields, get_past
from completions.requests.fields.tokens import make_context_error
from completions.requests.fields.window import DeadlineFields, DeadlineSettings, parse_deadline
from completions.requests.model import ModelRequestObject
from completions.requests.past import Addition, Past
from completions.requests.validation import Fallback

MAX_CHOICES = 1024
"""The most choices of one request: prompts times n."""
Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """How an answer is parsed into a message."""

    calls: ToolCalls | None
    calls_first: bool
    """Whether calls come before all text, or not at all."""
    reasoning: Reasoning | None
    hidden: Sequence[str]
    """Special tokens that stay in the text for the parser, which then removes them."""
    unseen: Sequence[str]
    """Texts that the parser removes from the content."""
    around: tuple[str, str]
    """Texts that it removes from the beginning and the end of the content."""
    separate_reasoning: bool
    stream_reasoning: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseSettings:
    """What a response of the Responses API has beside its chat."""

    shown: Mapping[str, object]
    """The fields that the response repeats."""
    items: Sequence[Item]
    """The request's own items, without ids."""
    store: bool
    previous_id: str
    """The stored response that it goes on from, or empty."""
    conversation_id: str | None
    last_item: int
    """As in Earlier."""

    @property
    def is_local(self) -> bool:
        """Whether nothing stores the response and its items."""
        return not self.store and self.conversation_id is None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """What the worker computes, and beside it what the response shows."""

    model: RequestedModel
    job: JobRequest
    """What the worker computes. It gets its grammar once the constraint is validated."""
    truncated_tokens: int = 0
    """How many tokens `truncate_sequence` cut from the prompts."""
    is_batch: bool = False
    """Whether SGLang's own route answers with an array."""
    echo: bool = False
    constraint: Constraint | None
    close: bool | None = None
    """Whether each choice ends with a whole text of the constraint; None for the default."""
    fallback: Fallback | None = None
    """What may replace the constraint if that cannot be used."""
    default_length: bool
    """Whether the route, not the client, chose max_tokens."""
    returns: ReturnSettings
    logprobs: LogprobSettings
    rid: str | Sequence[str] | None
    """The client's id of the request, or one for each prompt."""
    deadline: DeadlineSettings | None = None
    """None for the usual time and place."""
    chat: ChatSettings | None = None
    response: ResponseSettings | None = None
    addition: Addition | None = None
    """What the request adds to a session."""
    ignored: tuple[str, ...]
    """Paths of given fields that have no effect."""

    def change_job(self, **values: object) -> Self:
        """Return the same request with other values for some fields of its job."""
        return replace(self, job=structs.replace(self.job, **values))


class Length(NamedTuple):
    """How many tokens to generate, from the fields for it and the context's length."""

    most: int
    least: int
    is_default: bool
    """Whether the route, not the client, chose the most."""


class GenerationFields(
    ModelRequestObject[GenerationRequest],
    ConstraintFields,
    SamplingFields,
    ReturnFields,
    LogprobFields,
    RoutingFields,
    SessionFields,
    DeadlineFields,
    IgnoredFields,
):
    """The fields of both routes. Each route adds the prompt in its form, `max_tokens` and
    `logprobs`, and its `make` returns a GenerationRequest."""

    def find_past(self, values: Self, context: Context) -> Past | None:
        """Return what the request's session holds; None without one. Raises FieldError."""
        names_none = context.given.keys().isdisjoint(SessionFields.fields)
        return None if names_none else get_past(values, context)

    def make_request(
        self,
        values: Self,
        context: Context,
        prompts: Prompts,
        *,
        length: Length,
        logprobs: tuple[int | None, bool],
        ignored_too: Sequence[str],
    ) -> GenerationRequest:
        """Return the request made of validated fields, as far as both routes have them in common.
        `logprobs` are `top` and `of_prompt` of LogprobSettings; `ignored_too` names the route's own
        fields that have no effect. Raises FieldError and APIError."""
        model, principal = context.model, context.principal
        constraint = None
        if values.has_any(ConstraintFields):
            constraint = parse_constraint(values, model.files)
        if values.ignore_eos and length.is_default:
            message = "this field is required with ignore_eos."
            raise FieldError(message, "max_tokens", code="missing_required_parameter")
        sampling = parse_sampling(values, model.files, length.least, length.most)
        check_choices(len(prompts), sampling.n)
        no_effect = *IgnoredFields.fields, *ignored_too
        ignored = [name for name in no_effect if getattr(values, name) is not None]
        for group, module in _GROUPS.items():
            if values.has_any(group):
                ignored += module.list_without_effect(values)
        returns = parse_returns(values, principal, model.files, min(map(len, prompts)))
        top, of_prompt = logprobs
        scores = NO_LOGPROBS
        if top is not None or values.has_any(LogprobFields):
            scores = parse_logprobs(
                values,
                prompts,
                several=values.n > 1,
                streams=values.stream,
                top=top,
                of_prompt=of_prompt,
            )
        routing = parse_routing(values, principal, model.entry, model.adapter, len(prompts))
        deadline = parse_deadline(values) if values.has_any(DeadlineFields) else None
        is_flexible = deadline is not None and deadline.is_flexible
        with_experts = values.return_routed_experts
        job = JobRequest(
            prompts=tuple(map(tuple, prompts)),
            sampling=sampling,
            adapters=tuple(routing.adapters) if any(routing.adapters) else None,
            priority=FLEX_PRIORITY if is_flexible else routing.priority,
            cache_salt=routing.cache_salt,
            return_hidden_states=values.return_hidden_states,
            return_routed_experts=with_experts,
            routed_experts_start_len=values.routed_experts_start_len if with_experts else 0,
            logprobs=None if scores is NO_LOGPROBS else scores.make_params(len(prompts)),
        )
        return GenerationRequest(
            model=model,
            job=job,
            constraint=constraint,
            close=values.close,
            default_length=length.is_default,
            returns=returns,
            logprobs=scores,
            rid=routing.rid,
            deadline=deadline,
            ignored=tuple(ignored),
        )


_GROUPS: Final = {
    ConstraintFields: constraint_fields,
    SamplingFields: sampling_fields,
    ReturnFields: return_fields,
    LogprobFields: logprob_fields,
    DeadlineFields: deadline_fields,
}
"""Fields that may have no effect without others, and the module that says which."""


def parse_length(context: Context, max_tokens: int | None, newer: int | None) -> int | None:
    """Return the most tokens to generate, from either of the two fields that set it, of which
    `newer` is max_completion_tokens; None if the body has neither. Raises FieldError."""
    is_given = context.given.get("max_tokens") is not None  # else the value is the route's default
    length = max_tokens if is_given else None
    if length is not None and newer is not None and length != newer:
        older = format_number(length)
        message = f"{format_number(newer)} differs from max_tokens, {older}. Send only one."
        raise FieldError(message, "max_completion_tokens")
    return length if newer is None else newer


def check_choices(prompts: int, n: int, field: str = "n") -> None:
    """Raise FieldError when one request asks for too many choices, or candidates for them."""
    if prompts * n > MAX_CHOICES:
        message = f"is {n}; with {prompts} prompts it must be at most {MAX_CHOICES // prompts}."
        raise FieldError(message, field, code="integer_above_max_value")


def check_context(
    prompts: Prompts, max_tokens: int | None, max_model_len: int, field: str = "prompt"
) -> None:
    """Raise FieldError when a prompt and its completion exceed the model's context. `max_tokens`
    is None if the request leaves the length open."""
    index, longest = max(enumerate(map(len, prompts)), key=lambda pair: pair[1])
    if longest + (1 if max_tokens is None else max_tokens) <= max_model_len:
        return
    name = "messages" if field == "messages" else "prompt"
    subject = f"the {name}" if len(prompts) == 1 else f"prompt {index}"
    if max_tokens is None:
        however = (
            f"your {name} resulted in {longest} tokens, and the completion needs at least 1. "
            f"Please reduce the length of the {name}."
        )
    else:
        however = (
            f"you requested {format_number(longest + max_tokens)} tokens ({longest} in {subject}, "
            f"{format_number(max_tokens)} in the completion). Please reduce the length of the "
            f"{name} or completion."
        )
    raise make_context_error(max_model_len, however, field)
