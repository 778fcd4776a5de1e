"""From a request's body to its job, the same way for live requests and for lines of batches."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from completions.accounts.keys import Principal
from completions.catalog import model_files
from completions.requests.chat import ChatRequestSerializer
from completions.requests.completion import CompletionRequestSerializer
from completions.requests.generation import (
    GenerationRequestSerializer,
    generation_request,
    view_fields,
)
from completions.requests.ignored_fields import ignored
from completions.responses.chat import ChatView
from completions.responses.completion import View


class Route(NamedTuple):
    """A route that makes jobs."""

    serializer: type[GenerationRequestSerializer]
    view_type: type[View]


ROUTES: Mapping[str, Route] = {
    View.path: Route(CompletionRequestSerializer, View),
    ChatView.path: Route(ChatRequestSerializer, ChatView),
}


class Prepared(NamedTuple):
    """A validated body: what builds its responses, and what a worker runs."""

    view: View
    request: dict[str, Any]
    background: bool
    stream: bool
    ignored: tuple[str, ...] = ()
    """Names of fields that were given and have no effect."""


async def prepare(
    path: str, body: Any, principal: Principal, job_id: str | None = None
) -> Prepared:
    """Validate the body of a request to `path` and judge its grammar. Raises APIError.

    The job gets a random id unless the caller names one.
    """
    route = ROUTES[path]
    validated = await route.serializer.validate_request(body, principal)
    job_id = job_id or f"{route.view_type.id_prefix}{secrets.token_hex(16)}"
    build = _prepare_chat if route.view_type is ChatView else _prepare_completion
    return await build(validated, job_id)


async def _prepare_completion(validated: dict[str, Any], job_id: str) -> Prepared:
    alternatives, echo = validated["logprobs"], validated["echo"]
    request = await generation_request(validated, alternatives, from_start=echo)
    fields = view_fields(validated)
    if echo:
        fields["echo"] = _texts(validated["prompt"], validated["base_model"])
    if echo and alternatives is not None:
        fields["prompts"] = validated["prompt"]
    return Prepared(
        View(
            id=job_id,
            logprobs=alternatives,
            truncated_tokens=validated["truncated_tokens"],
            **fields,
        ),
        request,
        validated["background"],
        validated["stream"],
        ignored(validated, "parallel_tool_calls", "tools", "tool_choice"),
    )


async def _prepare_chat(validated: dict[str, Any], job_id: str) -> Prepared:
    request = await generation_request(validated, validated["alternatives"])
    idle = () if validated["tools"] else ("parallel_tool_calls",)
    return Prepared(
        _chat_view(validated, job_id),
        request,
        validated["background"],
        validated["stream"],
        (*ignored(validated, *idle), *validated["unread"]),
    )


def _chat_view(validated: dict[str, Any], job_id: str) -> ChatView:
    calls, thoughts = validated["calls"], validated["thoughts"]
    marks = None
    if thoughts is not None and validated["separate_reasoning"]:
        marks = thoughts.marks.begin, thoughts.marks.end
    return ChatView(
        id=job_id,
        tool_format=calls.format.name if calls else None,
        tools=[(tool.name, tool.parameters) for tool in calls.tools] if calls else (),
        thinking_marks=marks,
        thinking_open=thoughts.is_open if thoughts else False,
        hidden=validated["hidden"],
        alternatives=validated["alternatives"],
        stream_reasoning=validated["stream_reasoning"],
        **view_fields(validated),
    )


def _texts(prompts: Sequence[Sequence[int]], model_id: str) -> list[str]:
    """What is echoed: the prompts without their special tokens."""
    model = model_files.load(model_files.served_models().choose(model_id))
    return model.tokenizer.decode_batch([list(prompt) for prompt in prompts])
