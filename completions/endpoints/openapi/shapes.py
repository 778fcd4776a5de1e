"""JSON Schemas of the response bodies. A response may gain fields, so none of them is closed."""

from typing import Any

Shape = dict[str, Any]


def an_object(required: dict[str, Shape], **optional: Shape) -> Shape:
    """An object with these properties, which may have others too."""
    properties = {**required, **optional}
    return {"type": "object", "properties": properties, "required": list(required)}


def an_array(items: Shape) -> Shape:
    return {"type": "array", "items": items}


def or_null(shape: Shape) -> Shape:
    return {"anyOf": [shape, {"type": "null"}]}


STRING: Shape = {"type": "string"}
INTEGER: Shape = {"type": "integer"}
NUMBER: Shape = {"type": "number"}
BOOLEAN: Shape = {"type": "boolean"}
ANY: Shape = {}
OBJECT: Shape = {"type": "object"}

ERROR = an_object(
    {
        "error": an_object(
            {
                "message": STRING,
                "type": STRING,
                "param": or_null(STRING),
                "code": or_null(STRING),
            }
        )
    }
)
USAGE = an_object(
    {
        "prompt_tokens": INTEGER,
        "completion_tokens": INTEGER,
        "total_tokens": INTEGER,
        "prompt_tokens_details": an_object({"cached_tokens": INTEGER}),
        "completion_tokens_details": an_object({"reasoning_tokens": INTEGER}),
        "reasoning_tokens": INTEGER,
    },
    cost=NUMBER,
    cost_details=an_object({"prompt": NUMBER, "cached_prompt": NUMBER, "completion": NUMBER}),
)
_STATUS: Shape = {
    "type": "string",
    "enum": ["queued", "in_progress", "completed", "failed", "cancelled", "incomplete"],
    "description": "The state of a job that is polled.",
}


def completion(name: str, choice: Shape) -> Shape:
    """The body of a completion or a chat completion, which differ in their choices."""
    return an_object(
        {
            "id": STRING,
            "object": {"const": name},
            "created": INTEGER,
            "model": STRING,
            "choices": an_array(choice),
            "usage": or_null(USAGE),
        },
        system_fingerprint=or_null(STRING),
        metadata=an_object({"weight_version": or_null(STRING)}),
        status=_STATUS,
        error=or_null(ERROR["properties"]["error"]),
        incomplete_details=an_object({"reason": STRING}),
        expires_at=INTEGER,
        rid={"anyOf": [STRING, an_array(STRING)]},
        sglext=OBJECT,
        meta=OBJECT,
    )


_ENDS: dict[str, Shape] = {
    "finish_reason": or_null(STRING),
    "matched_stop": {"anyOf": [INTEGER, STRING, {"type": "null"}]},
}
_EXTRAS: dict[str, Shape] = {
    "meta_info": OBJECT,
    "hidden_states": or_null(an_array(NUMBER)),
    "token_ids": an_array(INTEGER),
    "prompt_token_ids": an_array(INTEGER),
}
LOGPROBS = an_object(
    {
        "tokens": an_array(STRING),
        "token_logprobs": an_array(or_null(NUMBER)),
        "top_logprobs": an_array(or_null(OBJECT)),
        "text_offset": an_array(INTEGER),
    }
)
COMPLETION = completion(
    "text_completion",
    an_object(
        {"index": INTEGER, "text": STRING, "logprobs": or_null(LOGPROBS), **_ENDS}, **_EXTRAS
    ),
)
CHAT_COMPLETION = completion(
    "chat.completion",
    an_object(
        {"index": INTEGER, "message": OBJECT, "logprobs": or_null(OBJECT), **_ENDS}, **_EXTRAS
    ),
)
MODEL = an_object(
    {
        "id": STRING,
        "object": {"const": "model"},
        "created": INTEGER,
        "owned_by": STRING,
        "root": STRING,
        "parent": or_null(STRING),
        "status": {"type": "string", "enum": ["loaded", "unloaded"]},
        "max_model_len": or_null(INTEGER),
        "vocab_size": or_null(INTEGER),
        "max_token_id": or_null(INTEGER),
        "eos_token_ids": or_null(an_array(INTEGER)),
        "default_max_tokens": INTEGER,
        "prices_per_million_tokens": or_null(OBJECT),
        "capabilities": or_null(OBJECT),
    }
)
MODELS = an_object({"object": {"const": "list"}, "data": an_array(MODEL)})
TOKENS = an_object({"tokens": an_array(INTEGER), "count": INTEGER, "max_model_len": INTEGER})
TEXT = an_object({"prompt": STRING})
VERDICT = an_object(
    {
        "valid": BOOLEAN,
        "error": or_null(STRING),
        "code": or_null(STRING),
        "line": or_null(INTEGER),
        "column": or_null(INTEGER),
        "pointer": or_null(STRING),
        "warnings": an_array(OBJECT),
    },
    accepts=BOOLEAN,
    matched_prefix=INTEGER,
)
FILE = an_object(
    {
        "id": STRING,
        "object": {"const": "file"},
        "bytes": INTEGER,
        "created_at": INTEGER,
        "filename": STRING,
        "purpose": STRING,
        "status": STRING,
    },
    expires_at=INTEGER,
)
DELETED = an_object({"id": STRING, "object": STRING, "deleted": {"const": True}})
BATCH = an_object(
    {
        "id": STRING,
        "object": {"const": "batch"},
        "endpoint": STRING,
        "input_file_id": STRING,
        "completion_window": STRING,
        "status": STRING,
        "created_at": INTEGER,
        "request_counts": an_object({"total": INTEGER, "completed": INTEGER, "failed": INTEGER}),
    },
    output_file_id=or_null(STRING),
    error_file_id=or_null(STRING),
    errors=or_null(OBJECT),
    metadata=or_null(OBJECT),
    usage=or_null(OBJECT),
    progress=OBJECT,
)


EVENT = an_object(
    {
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "description": "A chunk or an error; the last event of a stream is `[DONE]`.",
        }
    },
    id={"type": "string", "description": "The sequence number, if `sse_ids` is true."},
)
"""One event of a stream."""


def page(of: Shape) -> Shape:
    """One page of a list of such objects."""
    return an_object(
        {
            "object": {"const": "list"},
            "data": an_array(of),
            "first_id": or_null(STRING),
            "last_id": or_null(STRING),
            "has_more": BOOLEAN,
        }
    )


_PERCENTILES = an_object({"p50": or_null(NUMBER), "p95": or_null(NUMBER)})
_USAGE_RESULT = an_object(
    {
        "object": STRING,
        "input_tokens": INTEGER,
        "input_cached_tokens": INTEGER,
        "output_tokens": INTEGER,
        "forced_tokens": INTEGER,
        "num_model_requests": INTEGER,
        "num_failed_requests": INTEGER,
        "num_cancelled_requests": INTEGER,
        "cost": NUMBER,
        "latency_ms": _PERCENTILES,
        "first_token_ms": _PERCENTILES,
        "api_key_id": or_null(STRING),
        "api_key_name": or_null(STRING),
        "model": or_null(STRING),
        "adapter": or_null(STRING),
    }
)
USAGE_PAGE = an_object(
    {
        "object": {"const": "page"},
        "data": an_array(
            an_object(
                {
                    "object": {"const": "bucket"},
                    "start_time": INTEGER,
                    "end_time": INTEGER,
                    "results": an_array(_USAGE_RESULT),
                }
            )
        ),
        "has_more": BOOLEAN,
        "next_page": or_null(STRING),
    }
)


NAMED: dict[str, Shape] = {
    "Batch": BATCH,
    "ChatCompletion": CHAT_COMPLETION,
    "Completion": COMPLETION,
    "Deleted": DELETED,
    "Error": ERROR,
    "Event": EVENT,
    "File": FILE,
    "Model": MODEL,
    "Usage": USAGE,
    "UsageResult": _USAGE_RESULT,
    "Verdict": VERDICT,
}
"""Shapes that the document lists among its components and refers to by name."""
