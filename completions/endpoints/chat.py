"""POST /v1/chat/completions."""

import secrets
from typing import Any

from completions.accounts.keys import Principal
from completions.endpoints.jobs import Prepared, SubmitView
from completions.requests.chat import ChatRequestSerializer
from completions.requests.generation import generation_request, view_fields
from completions.requests.ignored_fields import ignored
from completions.responses.chat import ChatView


class ChatCompletionsView(SubmitView):
    """Submit a chat completion: answered when done, as a stream, or at once to be polled; list
    those that outlive their connection."""

    view_type = ChatView

    async def prepare(self, body: Any, principal: Principal) -> Prepared:
        return await prepare(body, principal)


async def prepare(body: Any, principal: Principal) -> Prepared:
    """A body validated, and the job that it asks for. Raises APIError and GrammarError."""
    validated = await ChatRequestSerializer.validate_request(body, principal)
    request = await generation_request(validated, validated["alternatives"])
    idle = () if validated["tools"] else ("parallel_tool_calls",)
    return Prepared(
        _view(validated),
        request,
        validated["background"],
        validated["stream"],
        (*ignored(validated, *idle), *validated["unread"]),
    )


def _view(validated: dict[str, Any]) -> ChatView:
    calls, thoughts = validated["calls"], validated["thoughts"]
    marks = None
    if thoughts is not None and validated["separate_reasoning"]:
        marks = thoughts.marks.begin, thoughts.marks.end
    return ChatView(
        id=f"{ChatView.id_prefix}{secrets.token_hex(16)}",
        tool_format=calls.format.name if calls else None,
        tools=[(tool.name, tool.parameters) for tool in calls.tools] if calls else (),
        thinking_marks=marks,
        thinking_open=thoughts.is_open if thoughts else False,
        hidden=validated["hidden"],
        alternatives=validated["alternatives"],
        stream_reasoning=validated["stream_reasoning"],
        **view_fields(validated),
    )
