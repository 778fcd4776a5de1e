"""The bodies of answers of Anthropic's Messages API."""

from completions.endpoints.openapi.examples import (
    make_any_object,
    make_const,
    make_named,
    make_null_or,
    make_one_of,
    make_optional,
)
from completions.endpoints.openapi.shapes import MODEL_ID

MESSAGE = make_named(
    "Message",
    {
        "id": "msg_6f9619ff8b86d011b42d00c04fc964ff",
        "type": make_const("message"),
        "role": make_const("assistant"),
        "model": MODEL_ID,
        "content": [make_any_object(type="text", text="Blue.")],
        "stop_reason": make_one_of(
            "end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn"
        ),
        "stop_sequence": make_null_or("."),
        "usage": {
            "input_tokens": 10,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 2,
            "output_tokens": 2,
            "output_tokens_details": {"thinking_tokens": 0},
            "cost": make_optional(0.0000025),
            "cost_details": make_optional(make_any_object()),
        },
        "meta": make_optional(make_any_object()),
    },
)
MESSAGE_ERROR = make_named(
    "MessageError",
    {
        "type": make_const("error"),
        "error": {
            "type": "invalid_request_error",
            "message": "temperature: must be at most 2, not 3.",
            "details": {
                "error_code": "decimal_above_max_value",
                "param": make_null_or("temperature"),
            },
        },
        "request_id": make_null_or("req_6f9619ff8b86d011b42d00c04fc964ff"),
    },
)
