"""The response bodies, each given once as an example from which its JSON Schema is derived.

A response may gain fields, so no schema forbids additional properties.
"""

from typing import Any, NamedTuple

from completions.requests.fields.base import nullable

Shape = dict[str, Any]
SCHEMAS: dict[str, Shape] = {}
"""Schemas that the document lists among its components and refers to by name."""
MODEL_ID = "smollm2-135m-instruct"
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


class Example(NamedTuple):
    """An example with its own schema, which is more precise than a derived one."""

    value: Any
    schema: Shape
    is_optional: bool = False


def schema_of(example: Any) -> Shape:
    """The JSON Schema of an example: keys are required unless optional; items match the first."""
    if isinstance(example, Example):
        return example.schema
    if isinstance(example, dict):
        optional = {name for name, each in example.items() if getattr(each, "is_optional", False)}
        return {
            "type": "object",
            "properties": {name: schema_of(each) for name, each in example.items()},
            "required": [name for name in example if name not in optional],
        }
    if isinstance(example, list):
        return {"type": "array", "items": schema_of(example[0])}
    return {"type": _TYPES[type(example)]}


def value_of(example: Any) -> Any:
    """The plain JSON value of an example."""
    if isinstance(example, Example):
        return value_of(example.value)
    if isinstance(example, dict):
        return {name: value_of(each) for name, each in example.items()}
    return [value_of(each) for each in example] if isinstance(example, list) else example


def named(name: str, example: Any) -> Example:
    """Add the schema to the document's components, and refer to it by name."""
    SCHEMAS[name] = schema_of(example)
    return Example(example, {"$ref": f"#/components/schemas/{name}"})


def const(value: Any) -> Example:
    return Example(value, {"const": value})


def one_of(value: str, *others: str, **keywords: str) -> Example:
    return Example(value, {"type": "string", "enum": [value, *others], **keywords})


def or_null(example: Any) -> Example:
    return Example(example, nullable(schema_of(example)))


def null_or(example: Any) -> Example:
    """Like `or_null`, but the example shows null."""
    return Example(None, nullable(schema_of(example)))


def optional(example: Any) -> Example:
    return Example(example, schema_of(example), is_optional=True)


def any_object(**example: Any) -> Example:
    return Example(example, {"type": "object"})


def page(row: Any) -> dict[str, Any]:
    """One page of a list of such rows."""
    ends = or_null(value_of(row)["id"])
    return {
        "object": const("list"), "data": [row], "first_id": ends, "last_id": ends,
        "has_more": False,
    }  # fmt: skip


_ERROR = {
    "message": "temperature: must be at most 2, not 3.", "type": "invalid_request_error",
    "param": or_null("temperature"), "code": or_null("decimal_above_max_value"),
}  # fmt: skip
ERROR = named("Error", {"error": _ERROR})
EVENT = named("Event", {
    "data": Example("[DONE]", {
        "type": "string", "contentMediaType": "application/json",
        "description": "A chunk or an error; the last event of a stream is `[DONE]`.",
    }),
    "id": optional(Example("7", {
        "type": "string", "description": "The sequence number, if `sse_ids` is true.",
    })),
})  # fmt: skip
USAGE = named("Usage", {
    "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2,
    "prompt_tokens_details": {"cached_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0}, "reasoning_tokens": 0,
    "cost": optional(0.0000025),
    "cost_details": optional(
        {"prompt": 0.0000005, "cached_prompt": 0.0, "completion": 0.000002}
    ),
})  # fmt: skip


def _completion(prefix: str, kind: str, text: dict[str, Any], logprobs: Any) -> dict[str, Any]:
    """A completion or a chat completion, which differ in their choices."""
    choice = {
        "index": 0, **text, "logprobs": null_or(logprobs), "finish_reason": or_null("stop"),
        "matched_stop": Example(
            2, {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]}
        ),
        "meta_info": optional(any_object()), "hidden_states": optional(or_null([0.5])),
        "token_ids": optional([35]), "prompt_token_ids": optional([9703]),
    }  # fmt: skip
    return {
        "id": f"{prefix}6f9619ff8b86d011b42d00c04fc964ff", "object": const(kind),
        "created": 1770000000, "model": MODEL_ID, "choices": [choice], "usage": or_null(USAGE),
        "system_fingerprint": optional(null_or("fp_1")),
        "metadata": optional({"weight_version": null_or("1")}),
        "status": optional(one_of(
            "completed", "queued", "in_progress", "failed", "cancelled", "incomplete",
            description="The state of a job that is polled.",
        )),
        "error": optional(null_or(_ERROR)),
        "incomplete_details": optional({"reason": "expired"}), "expires_at": optional(1770086400),
        "rid": optional(Example(
            "r-1", {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
        )),
        "sglext": optional(any_object()), "meta": optional(any_object()),
    }  # fmt: skip


COMPLETION = named("Completion", _completion("cmpl-", "text_completion", {"text": "A"}, {
    "tokens": ["A"], "token_logprobs": [or_null(-0.5)], "top_logprobs": [or_null(any_object())],
    "text_offset": [0], "forced": optional([or_null(False)]),
}))  # fmt: skip
CHAT_COMPLETION = named("ChatCompletion", _completion(
    "chatcmpl-", "chat.completion",
    {"message": any_object(role="assistant", content="Blue.")}, any_object(),
))  # fmt: skip
MODEL = named("Model", {
    "id": MODEL_ID, "object": const("model"), "created": 1770000000, "owned_by": "quire",
    "root": MODEL_ID, "parent": null_or("base"), "status": one_of("loaded", "unloaded"),
    "max_model_len": or_null(8192), "vocab_size": or_null(49152), "max_token_id": or_null(49151),
    "eos_token_ids": or_null([2]), "default_max_tokens": 16,
    "prices_per_million_tokens": null_or(any_object()),
    "capabilities": or_null(any_object(token_prompts=True, adapters=[])),
})  # fmt: skip
MODELS = {"object": const("list"), "data": [MODEL]}
TOKENS = {"tokens": [19556], "count": 1, "max_model_len": 8192}
VERDICT = named("Verdict", {
    "valid": True, "error": null_or(""), "code": null_or(""), "line": null_or(1),
    "column": null_or(1), "pointer": null_or(""),
    "warnings": Example([], {"type": "array", "items": {"type": "object"}}),
    "accepts": optional(True), "matched_prefix": optional(3),
})  # fmt: skip
FILE = named("File", {
    "id": "file-1", "object": const("file"), "bytes": 120, "created_at": 1770000000,
    "filename": "lines.jsonl", "purpose": "batch", "status": "processed",
    "expires_at": optional(1772592000),
})  # fmt: skip
UPLOAD = named("Upload", {
    "id": "upload_1", "object": const("upload"), "bytes": 120, "created_at": 1770000000,
    "expires_at": 1770086400, "filename": "lines.jsonl", "purpose": "batch", "status": "pending",
    "file": or_null(FILE),
})  # fmt: skip
BATCH = named("Batch", {
    "id": "batch_1", "object": const("batch"), "endpoint": "/v1/completions",
    "input_file_id": "file-1", "completion_window": "24h", "status": "in_progress",
    "created_at": 1770000000, "request_counts": {"total": 2, "completed": 1, "failed": 0},
    "output_file_id": optional(or_null("file-2")), "error_file_id": optional(null_or("file-3")),
    "errors": optional(null_or(any_object())), "metadata": optional(null_or(any_object())),
    "usage": optional(null_or(any_object())), "progress": optional(any_object()),
    "on_invalid": "skip", "plan": optional(null_or(any_object())),
    "summary": optional(null_or(any_object())), "pilot": optional(null_or(30)),
    "receipts": False,
    "held": optional(False), "forecast": optional(null_or(any_object())),
})  # fmt: skip
DELETED = named("Deleted", {"id": "file-1", "object": "file", "deleted": const(True)})
_PERCENTILES = {"p50": or_null(350.0), "p95": or_null(480.0)}
USAGE_PAGE = {
    "object": const("page"), "has_more": False, "next_page": null_or("page_1770076800"),
    "data": [
        {"object": const("bucket"), "start_time": 1769990400, "end_time": 1770076800,
         "results": [named("UsageResult", {
             "object": "organization.usage.completions.result", "input_tokens": 120,
             "input_cached_tokens": 32, "output_tokens": 64, "forced_tokens": 20,
             "num_model_requests": 4, "num_failed_requests": 0, "num_cancelled_requests": 1,
             "cost": 0.00018, "latency_ms": _PERCENTILES, "first_token_ms": _PERCENTILES,
             "api_key_id": or_null("sk-aB3xY9"), "api_key_name": or_null("ci"),
             "model": or_null(MODEL_ID), "adapter": null_or("polite"),
         })]}
    ],
}  # fmt: skip
