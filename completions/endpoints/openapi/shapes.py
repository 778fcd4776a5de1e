"""The response bodies, each given once as an example from which its JSON Schema is derived."""

from completions.endpoints.openapi.examples import (
    Example,
    make_any_object,
    make_const,
    make_named,
    make_null_or,
    make_one_of,
    make_optional,
    make_or_null,
    make_schema,
)
from completions.models.usage import USAGE_COUNTS

MODEL_ID = "smollm2-135m-instruct"
_ERROR = {
    "message": "temperature: must be at most 2, not 3.",
    "type": "invalid_request_error",
    "param": make_or_null("temperature"),
    "code": make_or_null("decimal_above_max_value"),
}
ERROR = make_named("Error", {"error": _ERROR})
EVENT = make_named(
    "Event",
    {
        "data": Example(
            "[DONE]",
            {
                "type": "string",
                "contentMediaType": "application/json",
                "description": "A chunk or an error; the last event of a stream is `[DONE]`.",
            },
        ),
        "id": make_optional(
            Example(
                "7",
                {"type": "string", "description": "The sequence number, if `sse_ids` is true."},
            )
        ),
    },
)
USAGE = make_named(
    "Usage",
    {
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "total_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
        "reasoning_tokens": 0,
        "cost": make_optional(0.0000025),
        "cost_details": make_optional(
            {"prompt": 0.0000005, "cached_prompt": 0.0, "completion": 0.000002}
        ),
    },
)


def _make_completion(
    prefix: str, kind: str, text: dict[str, object], logprobs: object
) -> dict[str, object]:
    """Return a completion or a chat completion, which differ in their choices."""
    choice = {
        "index": 0,
        **text,
        "logprobs": make_null_or(logprobs),
        "finish_reason": make_or_null("stop"),
        "matched_stop": Example(
            2, {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]}
        ),
        "meta_info": make_optional(make_any_object()),
        "hidden_states": make_optional(make_or_null([0.5])),
        "id": make_optional(f"{prefix}6f9619ff8b86d011b42d00c04fc964ff:0"),
        "token_ids": make_optional([35]),
        "token_mask": make_optional([1]),
        "prompt_token_ids": make_optional([9703]),
    }
    return {
        "id": f"{prefix}6f9619ff8b86d011b42d00c04fc964ff",
        "object": make_const(kind),
        "created": 1770000000,
        "model": MODEL_ID,
        "choices": [choice],
        "usage": make_or_null(USAGE),
        "system_fingerprint": make_optional(make_null_or("fp_1")),
        "metadata": make_optional({"weight_version": make_null_or("1")}),
        "status": make_optional(
            make_one_of(
                "completed",
                "queued",
                "in_progress",
                "failed",
                "cancelled",
                "incomplete",
                description="The state of a job that is polled.",
            )
        ),
        "error": make_optional(make_null_or(_ERROR)),
        "incomplete_details": make_optional({"reason": "expired"}),
        "expires_at": make_optional(1770086400),
        "rid": make_optional(
            Example(
                "r-1",
                {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
            )
        ),
        "session": make_optional(
            {
                "id": "session_1",
                "after": make_null_or(f"{prefix}1:0"),
                "drift": make_null_or({"from_message": 2, "action": "keep"}),
            }
        ),
        "sglext": make_optional(make_any_object()),
        "meta": make_optional(make_any_object()),
    }


COMPLETION = make_named(
    "Completion",
    _make_completion(
        "cmpl-",
        "text_completion",
        {"text": "A"},
        {
            "tokens": ["A"],
            "token_logprobs": [make_or_null(-0.5)],
            "top_logprobs": [make_or_null(make_any_object())],
            "text_offset": [0],
            "forced": make_optional([make_or_null(False)]),
        },
    ),
)
CHAT_COMPLETION = make_named(
    "ChatCompletion",
    _make_completion(
        "chatcmpl-",
        "chat.completion",
        {"message": make_any_object(role="assistant", content="Blue.")},
        make_any_object(),
    ),
)
_OUTPUT = {
    "text": "A",
    "output_ids": [35],
    "meta_info": make_any_object(prompt_tokens=1, finish_reason={"type": "stop", "matched": 2}),
}
_OUTPUTS = make_schema([_OUTPUT])
SGLANG_OUTPUT = Example(_OUTPUT, {"anyOf": [_OUTPUTS["items"], _OUTPUTS, COMPLETION.schema]})
"""A completion answers a request that is not waited for."""
_VLLM_RESPONSE = {
    "request_id": "cmpl-6f9619ff8b86d011b42d00c04fc964ff",
    "model": MODEL_ID,
    "created": 1770000000,
    "choices": [
        {
            "index": 0,
            "logprobs": make_null_or(make_any_object()),
            "finish_reason": make_or_null("stop"),
            "token_ids": [35],
        }
    ],
    "usage": make_or_null(USAGE),
    "prompt_logprobs": make_null_or([make_any_object()]),
    "kv_transfer_params": make_null_or(make_any_object()),
}
VLLM_RESPONSE = Example(_VLLM_RESPONSE, {"anyOf": [make_schema(_VLLM_RESPONSE), COMPLETION.schema]})
MODEL = make_named(
    "Model",
    {
        "id": MODEL_ID,
        "object": make_const("model"),
        "created": 1770000000,
        "owned_by": "quire",
        "root": MODEL_ID,
        "parent": make_null_or("base"),
        "status": make_one_of("loaded", "unloaded"),
        "cold_start": False,
        "max_model_len": make_or_null(8192),
        "vocab_size": make_or_null(49152),
        "max_token_id": make_or_null(49151),
        "eos_token_ids": make_or_null([2]),
        "default_max_tokens": 16,
        "prices_per_million_tokens": make_null_or(make_any_object()),
        "chat_style": make_null_or(make_any_object()),
        "capabilities": make_or_null(make_any_object(token_prompts=True, adapters=[])),
    },
)
MODELS = {"object": make_const("list"), "data": [MODEL]}
_COUNT = {"type": "integer"}
_IDS = {"type": "array", "items": _COUNT}
TOKENS = {
    "tokens": Example([19556], {"anyOf": [_IDS, {"type": "array", "items": _IDS}]}),
    "count": Example(1, {"anyOf": [_COUNT, _IDS]}),
    "max_model_len": 8192,
}
GRAMMAR_VALIDATION = make_named(
    "GrammarValidation",
    {
        "valid": True,
        "error": make_null_or(""),
        "code": make_null_or(""),
        "line": make_null_or(1),
        "column": make_null_or(1),
        "pointer": make_null_or(""),
        "warnings": Example([], {"type": "array", "items": {"type": "object"}}),
        "accepts": make_optional(True),
        "matched_prefix": make_optional(3),
    },
)
FILE = make_named(
    "File",
    {
        "id": "file-1",
        "object": make_const("file"),
        "bytes": 120,
        "created_at": 1770000000,
        "filename": "lines.jsonl",
        "purpose": "batch",
        "status": "processed",
        "expires_at": make_optional(1772592000),
    },
)
UPLOAD = make_named(
    "Upload",
    {
        "id": "upload_1",
        "object": make_const("upload"),
        "bytes": 120,
        "created_at": 1770000000,
        "expires_at": 1770086400,
        "filename": "lines.jsonl",
        "purpose": "batch",
        "status": "pending",
        "file": make_or_null(FILE),
    },
)
BATCH = make_named(
    "Batch",
    {
        "id": "batch_1",
        "object": make_const("batch"),
        "endpoint": "/v1/completions",
        "input_file_id": "file-1",
        "completion_window": "24h",
        "on_late": make_one_of("accept", "refuse"),
        "deadline": {
            "ends_at": 1770086400,
            "done_by": make_or_null(1770001200),
            "probability": make_or_null(0.98),
            "admitted": make_or_null(
                {"done_by": make_or_null(1770001200), "probability": make_or_null(0.95)}
            ),
        },
        "status": "in_progress",
        "created_at": 1770000000,
        "request_counts": {"total": 2, "completed": 1, "failed": 0},
        "output_file_id": make_optional(make_or_null("file-2")),
        "error_file_id": make_optional(make_null_or("file-3")),
        "errors": make_optional(make_null_or(make_any_object())),
        "metadata": make_optional(make_null_or(make_any_object())),
        "usage": make_optional(make_null_or(make_any_object())),
        "progress": make_optional(make_any_object()),
        "on_invalid": "skip",
        "plan": make_optional(make_null_or(make_any_object())),
        "summary": make_optional(make_null_or(make_any_object())),
        "pilot": make_optional(make_null_or(30)),
        "receipts": False,
        "close": make_optional(False),
        "held": make_optional(False),
        "models": make_optional([MODEL_ID]),
        "forecast": make_optional(make_null_or(make_any_object())),
    },
)
SESSION = make_named(
    "Session",
    {
        "id": "session_1",
        "object": make_const("session"),
        "model": MODEL_ID,
        "on_drift": make_one_of("keep", "rebase", "fail"),
        "created_at": 1770000000,
        "expires_at": 1770604800,
        "bytes": 2048,
        "turns": make_optional(
            [
                {
                    "id": "chatcmpl-1",
                    "after": make_null_or("chatcmpl-0:0"),
                    "status": "completed",
                    "created_at": 1770000000,
                    "choices": ["chatcmpl-1:0"],
                }
            ]
        ),
    },
)
DELETED = make_named("Deleted", {"id": "file-1", "object": "file", "deleted": make_const(True)})
_PERCENTILES = {"p50": make_or_null(350.0), "p95": make_or_null(480.0)}
USAGE_PAGE = {
    "object": make_const("page"),
    "has_more": False,
    "next_page": make_null_or("page_1770076800"),
    "data": [
        {
            "object": make_const("bucket"),
            "start_time": 1769990400,
            "end_time": 1770076800,
            "results": [
                make_named(
                    "UsageResult",
                    {
                        "object": "organization.usage.completions.result",
                        **{each.public_name: each.example for each in USAGE_COUNTS},
                        "cost": 0.00018,
                        "latency_ms": _PERCENTILES,
                        "first_token_ms": _PERCENTILES,
                        "api_key_id": make_or_null("sk-aB3xY9"),
                        "api_key_name": make_or_null("ci"),
                        "model": make_or_null(MODEL_ID),
                        "adapter": make_null_or("polite"),
                    },
                )
            ],
            "refusals": [
                make_named(
                    "Refusals",
                    {
                        "object": "refusals",
                        "code": "model_not_found",
                        "count": 3,
                        "message": "The model 'tinny' does not exist.",
                        "last_at": 1770001200,
                        "request_id": "req_5f0c",
                        "api_key_id": "sk-aB3xY9",
                        "api_key_name": "ci",
                    },
                )
            ],
        }
    ],
}
