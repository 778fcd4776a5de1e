"""The response bodies of the Responses API and of conversations."""

from completions.endpoints.openapi.examples import (
    Example,
    make_any_object,
    make_const,
    make_named,
    make_null_or,
    make_one_of,
    make_optional,
    make_or_null,
    make_page,
)
from completions.endpoints.openapi.shapes import MODEL_ID

ITEM = make_any_object(
    id="msg_6f9619ff8b86d011b42d00c04fc964ff_0",
    type="message",
    role="assistant",
    status="completed",
    content=[{"type": "output_text", "text": "Blue.", "annotations": [], "logprobs": []}],
)
ITEMS = make_page(ITEM)
_USAGE = {
    "input_tokens": 1,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 1,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 2,
    "cost": make_optional(0.0000025),
    "cost_details": make_optional(make_any_object()),
}
RESPONSE = make_named(
    "Response",
    {
        "id": "resp_6f9619ff8b86d011b42d00c04fc964ff",
        "object": make_const("response"),
        "created_at": 1770000000,
        "completed_at": make_or_null(1770000001),
        "status": make_one_of(
            "completed", "queued", "in_progress", "failed", "cancelled", "incomplete"
        ),
        "model": MODEL_ID,
        "instructions": make_null_or("Answer in one word."),
        "previous_response_id": make_null_or("resp_1"),
        "conversation": make_null_or({"id": "conv_1"}),
        "temperature": 1.0,
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": 0,
        "max_output_tokens": make_or_null(16),
        "max_tool_calls": make_null_or(1),
        "truncation": make_one_of("disabled", "auto"),
        "store": True,
        "background": False,
        "user": make_null_or("u-1"),
        "safety_identifier": make_null_or("u-1"),
        "prompt_cache_key": make_null_or("k-1"),
        "metadata": make_any_object(topic="colours"),
        "tools": Example([], {"type": "array", "items": {"type": "object"}}),
        "tool_choice": Example("auto", {"anyOf": [{"type": "string"}, {"type": "object"}]}),
        "parallel_tool_calls": True,
        "text": make_any_object(format={"type": "text"}),
        "reasoning": make_any_object(effort=None, summary=None),
        "service_tier": "default",
        "output": [ITEM],
        "error": make_null_or({"code": "server_error", "message": "Retry the request."}),
        "incomplete_details": make_null_or({"reason": "max_output_tokens"}),
        "usage": make_or_null(_USAGE),
        "meta": make_optional(make_any_object()),
    },
)
COMPACTION = make_named(
    "Compaction",
    {
        "id": "resp_6f9619ff8b86d011b42d00c04fc964ff",
        "object": make_const("response.compaction"),
        "created_at": 1770000000,
        "output": [
            make_any_object(
                id="cmp_6f9619ff8b86d011b42d00c04fc964ff_0",
                type="compaction",
                encrypted_content="gAAAAABpM0Yj...",
            )
        ],
        "usage": _USAGE,
        "meta": make_optional(make_any_object()),
    },
)
CONVERSATION = make_named(
    "Conversation",
    {
        "id": "conv_1",
        "object": make_const("conversation"),
        "created_at": 1770000000,
        "metadata": make_any_object(topic="colours"),
    },
)
