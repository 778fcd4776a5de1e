"""Example response bodies, which the document shows and the tests hold against the schemas."""

from typing import Any

MODEL_ID = "smollm2-135m-instruct"

USAGE = {
    "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2,
    "prompt_tokens_details": {"cached_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0}, "reasoning_tokens": 0,
}  # fmt: skip
COMPLETION = {
    "id": "cmpl-6f9619ff8b86d011b42d00c04fc964ff", "object": "text_completion",
    "created": 1770000000, "model": MODEL_ID,
    "choices": [
        {"index": 0, "text": "A", "logprobs": None, "finish_reason": "stop", "matched_stop": None}
    ],
    "usage": USAGE,
}  # fmt: skip
CHAT = {
    **COMPLETION, "id": "chatcmpl-6f9619ff8b86d011b42d00c04fc964ff", "object": "chat.completion",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Blue."}, "logprobs": None,
         "finish_reason": "stop", "matched_stop": 2}
    ],
}  # fmt: skip
FILE = {
    "id": "file-1", "object": "file", "bytes": 120, "created_at": 1770000000,
    "filename": "lines.jsonl", "purpose": "batch", "status": "processed",
}  # fmt: skip
BATCH = {
    "id": "batch_1", "object": "batch", "endpoint": "/v1/completions", "input_file_id": "file-1",
    "completion_window": "24h", "status": "in_progress", "created_at": 1770000000,
    "request_counts": {"total": 2, "completed": 1, "failed": 0},
}  # fmt: skip
VERDICT: dict[str, Any] = {
    "valid": True, "error": None, "code": None, "line": None, "column": None, "pointer": None,
    "warnings": [], "accepts": True, "matched_prefix": 3,
}  # fmt: skip
MODEL = {
    "id": MODEL_ID, "object": "model", "created": 1770000000, "owned_by": "quire",
    "root": MODEL_ID, "parent": None, "status": "loaded", "max_model_len": 8192,
    "vocab_size": 49152, "max_token_id": 49151, "eos_token_ids": [2], "default_max_tokens": 16,
    "prices_per_million_tokens": None, "capabilities": {"token_prompts": True, "adapters": []},
}  # fmt: skip
USAGE_PAGE = {
    "object": "page", "has_more": False, "next_page": None,
    "data": [
        {"object": "bucket", "start_time": 1769990400, "end_time": 1770076800,
         "results": [
             {"object": "organization.usage.completions.result", "input_tokens": 120,
              "input_cached_tokens": 32, "output_tokens": 64, "forced_tokens": 20,
              "num_model_requests": 4, "num_failed_requests": 0, "num_cancelled_requests": 1,
              "cost": 0.00018, "latency_ms": {"p50": 350.0, "p95": 480.0},
              "first_token_ms": {"p50": 75.0, "p95": 95.0}, "api_key_id": "sk-aB3xY9",
              "api_key_name": "ci", "model": MODEL_ID, "adapter": None, "project_id": None,
              "user_id": None, "batch": None}
         ]}
    ],
}  # fmt: skip


def page(row: dict[str, Any]) -> dict[str, Any]:
    """A list of one row."""
    return {
        "object": "list", "data": [row], "first_id": row["id"], "last_id": row["id"],
        "has_more": False,
    }  # fmt: skip
