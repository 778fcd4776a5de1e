"""Models, tokenization, files and batches: calls that each route takes, with checks of its answers,
and values that it refuses. `{file}`, `{output}`, `{batch}` and `{small}` stand for ids of existing
objects."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from completions.endpoints.batch_request import BatchRequestObject
from completions.endpoints.tokenization import (
    DetokenizeRequestObject,
    TokenizeRequestObject,
)
from completions.endpoints.uploads import UploadRequestObject
from tests.acceptance.contract.rows import ABSENT
from tests.acceptance.small_model import ADAPTER, CONTEXT, PRICES, SMALL, small_tokenizer

VOCABULARY = small_tokenizer().get_vocab_size()
DAY = 86_400
LINES = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}\n'

MODEL = {"id", "object", "created", "owned_by"}
FILE = {"id", "bytes", "created_at", "filename", "object", "purpose", "status", "expires_at"}
PAGE = {"object", "data", "first_id", "last_id", "has_more"}
BATCH = {
    "id", "completion_window", "created_at", "endpoint", "input_file_id", "object", "status",
    "errors", "output_file_id", "error_file_id", "in_progress_at", "expires_at", "finalizing_at",
    "completed_at", "failed_at", "expired_at", "cancelling_at", "cancelled_at", "request_counts",
    "metadata", "usage",
}  # fmt: skip
"""Keys that OpenAI's client types know; there may be others."""

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Taken:
    """A call, and a check of its answer."""

    method: str
    path: str
    check: Callable[[Any], bool]
    body: Body | None = None
    """JSON, or the parts of a form."""
    query: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Denied:
    """A call that is refused. Fields that the body lacks come from USUAL."""

    method: str
    path: str
    status: int
    code: str
    param: str | None
    body: Body | None = None
    query: Mapping[str, Any] = field(default_factory=dict)


USUAL: Mapping[str, Body] = {
    "/v1/tokenize": {"model": SMALL, "prompt": "hello"},
    "/v1/detokenize": {"model": SMALL, "tokens": [5, 6]},
    "/v1/files": {"purpose": "batch", "file": LINES},
    "/v1/batches": {
        "input_file_id": "{file}", "endpoint": "/v1/completions", "completion_window": "24h",
    },
    "/v1/uploads": {
        "filename": "a.jsonl", "purpose": "batch", "bytes": 9, "mime_type": "text/jsonl",
    },
}  # fmt: skip
FIELDS = {
    "/v1/tokenize": set(TokenizeRequestObject.fields),
    "/v1/detokenize": set(DetokenizeRequestObject.fields),
    "/v1/batches": set(BatchRequestObject.fields),
    "/v1/uploads": set(UploadRequestObject.fields),
    "/v1/files": {"purpose", "file", "expires_after[anchor]", "expires_after[seconds]"},
}
"""Each field needs a row in which it is taken, and a row in which it is refused."""


def _is_batch(seen: Any) -> bool:
    return set(seen) >= BATCH and seen["status"] == "validating" and seen["object"] == "batch"


def _made(path: str, **body: Any) -> Callable[[Callable[[Any], bool]], Taken]:
    return lambda check: Taken("POST", path, check, body)


def _expires(seconds: Any, anchor: Any = "created_at") -> Body:
    return {"output_expires_after": {"anchor": anchor, "seconds": seconds}}


TAKEN: Sequence[Taken] = (
    Taken("GET", "/v1/models", lambda seen: seen["object"] == "list" and all(
        set(model) >= MODEL and model["object"] == "model" for model in seen["data"]
    ) and {SMALL, f"{SMALL}:{ADAPTER}"} <= {model["id"] for model in seen["data"]}),
    Taken("GET", "/v1/models/{small}", lambda seen: (
        seen["max_model_len"], seen["vocab_size"], seen["max_token_id"], seen["status"],
        seen["root"], seen["parent"], seen["prices_per_million_tokens"],
    ) == (CONTEXT, VOCABULARY, VOCABULARY - 1, "loaded", SMALL, None, PRICES)),
    Taken("GET", "/v1/models/{small}", lambda seen: seen["capabilities"] == {
        "text_prompts": True, "token_prompts": True, "chat": True, "tools": True,
        "thinking": True, "ebnf": True, "regex": True, "json_schema": True,
        "structural_tag": True, "lark": True, "logprobs": True, "hidden_states": True,
        "routed_experts": True, "fim": True, "adapters": [ADAPTER], "forward": "torch",
        "quantization": None, "close": True, "scores": True, "processed_logprobs": True,
        "sampling_support": True,
    }),
    Taken("GET", f"/v1/models/{SMALL}:{ADAPTER}", lambda seen: seen["parent"] == SMALL),
    _made("/v1/tokenize")(lambda seen: (
        seen["count"] == len(seen["tokens"]) > 0 and seen["max_model_len"] == CONTEXT
    )),
    _made("/v1/tokenize", prompt=ABSENT, messages=[{"role": "user", "content": "a"}])(
        lambda seen: seen["count"] > 5
    ),
    _made("/v1/tokenize", add_special_tokens=False)(lambda seen: seen["count"] > 0),
    _made(
        "/v1/tokenize", prompt=ABSENT, messages=[{"role": "user", "content": "a"}],
        add_generation_prompt=False,
    )(lambda seen: seen["count"] > 3),
    *(_made("/v1/tokenize", prompt=ABSENT, messages=[{"content": "a"}], **body)(
        lambda seen: seen["count"] > 5
      ) for body in (
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"tool_choice": "none"},
        {"thinking": {"type": "disabled"}},
        {"chat_template_kwargs": {"enable_thinking": True}},
    )),
    _made("/v1/detokenize")(lambda seen: isinstance(seen["prompt"], str)),
    _made("/v1/files")(lambda seen: (
        set(seen) >= FILE and seen["bytes"] == len(LINES) and seen["status"] == "processed"
        and (seen["purpose"], seen["object"]) == ("batch", "file")
        and seen["expires_at"] - seen["created_at"] == 30 * DAY
    )),
    _made("/v1/files", **{
        "expires_after[anchor]": "created_at", "expires_after[seconds]": "3600",
    })(lambda seen: seen["expires_at"] - seen["created_at"] == 3600),
    Taken("GET", "/v1/files", lambda seen: set(seen) == PAGE and seen["has_more"] is True,
          query={"purpose": "batch", "limit": 1, "order": "desc"}),
    Taken("GET", "/v1/files", lambda seen: seen["data"] == [], query={"purpose": "batch_output",
          "after": "{output}", "order": "asc"}),
    Taken("GET", "/v1/files/{file}", lambda seen: set(seen) >= FILE),
    _made("/v1/batches")(_is_batch),
    _made("/v1/batches", completion_window="1h")(
        lambda seen: seen["expires_at"] - seen["created_at"] == 3600
    ),
    _made("/v1/batches", completion_window="168h")(
        lambda seen: seen["expires_at"] - seen["created_at"] == 168 * 3600
    ),
    _made("/v1/batches", completion_window="2d", on_late="accept")(
        lambda seen: seen["expires_at"] - seen["created_at"] == 2 * DAY
        and seen["on_late"] == "accept"
    ),
    _made("/v1/batches", endpoint="/v1/chat/completions")(
        lambda seen: seen["endpoint"] == "/v1/chat/completions"
    ),
    _made("/v1/batches", metadata={f"k{n}": "v" * 512 for n in range(16)})(
        lambda seen: len(seen["metadata"]) == 16
    ),
    _made("/v1/batches", **_expires(3600))(_is_batch),
    _made("/v1/batches", close=True)(_is_batch),
    _made("/v1/batches", input_file_id=ABSENT, requests=[{"body": {}}])(_is_batch),
    _made("/v1/batches", on_invalid="fail", receipts=True)(
        lambda seen: _is_batch(seen) and seen["on_invalid"] == "fail"
    ),
    _made("/v1/batches", dry_run=True)(
        lambda seen: (seen["object"], seen["lines"]) == ("batch.forecast", 1)
    ),
    _made("/v1/batches", dry_run=True, pilot=1)(
        lambda seen: _is_batch(seen) and (seen["pilot"], seen["held"]) == (1, True)
    ),
    _made("/v1/uploads")(lambda seen: seen["status"] == "pending" and seen["bytes"] == 9),
    _made("/v1/uploads", expires_after={"anchor": "created_at", "seconds": 3600})(
        lambda seen: seen["expires_at"] - seen["created_at"] == DAY
    ),
    Taken("GET", "/v1/batches", lambda seen: set(seen) == PAGE and len(seen["data"]) == 2,
          query={"limit": 2}),
    Taken("GET", "/v1/batches/{batch}", lambda seen: (
        set(seen) >= BATCH and seen["status"] == "completed"
        and seen["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
        and set(seen["usage"]) == {"input_tokens", "input_tokens_details", "output_tokens",
                                   "output_tokens_details", "total_tokens"}
    )),
    Taken("POST", "/v1/batches/{batch}/cancel", lambda seen: seen["status"] == "completed"),
)  # fmt: skip


def _post(path: str, code: str, param: str, **body: Any) -> Denied:
    return Denied("POST", path, 400, code, param, body)


def _list(path: str, param: str, value: Any) -> Denied:
    return Denied("GET", path, 400, "invalid_value", param, None, {param: value})


_OBJECTS = (
    ("GET", "/v1/files/{}", "file_not_found"),
    ("GET", "/v1/files/{}/content", "file_not_found"),
    ("DELETE", "/v1/files/{}", "file_not_found"),
    ("GET", "/v1/batches/{}", "batch_not_found"),
    ("POST", "/v1/batches/{}/cancel", "batch_not_found"),
    ("POST", "/v1/batches/{}/resubmit", "batch_not_found"),
    ("POST", "/v1/batches/{}/start", "batch_not_found"),
    ("GET", "/v1/uploads/{}", "upload_not_found"),
    ("POST", "/v1/uploads/{}/complete", "upload_not_found"),
    ("POST", "/v1/uploads/{}/cancel", "upload_not_found"),
)

DENIED: Sequence[Denied] = (
    Denied("GET", "/v1/models/nobody", 404, "model_not_found", "model"),
    Denied("GET", f"/v1/models/{SMALL}:nobody", 404, "adapter_not_found", "model"),
    Denied("GET", "/v1/models/a/b", 404, "model_not_found", "model"),
    *(Denied(method, path.format("nobody"), 404, code, "id") for method, path, code in _OBJECTS),
    *(Denied("POST", path, 404, "model_not_found", "model", {"model": "nobody"})
      for path in ("/v1/tokenize", "/v1/detokenize")),
    _post("/v1/tokenize", "missing_required_parameter", "model", model=ABSENT),
    _post("/v1/tokenize", "missing_required_parameter", "prompt", prompt=ABSENT),
    _post("/v1/tokenize", "invalid_type", "prompt", prompt=5),
    _post("/v1/tokenize", "invalid_value", "messages", messages=[{"role": "user", "content": ""}]),
    _post("/v1/tokenize", "empty_array", "messages", prompt=ABSENT, messages=[]),
    _post("/v1/tokenize", "invalid_value", "messages[0].role", prompt=ABSENT,
          messages=[{"role": "nobody", "content": ""}]),
    _post("/v1/tokenize", "invalid_type", "add_special_tokens", add_special_tokens="yes"),
    _post("/v1/tokenize", "invalid_type", "add_generation_prompt", add_generation_prompt=1),
    _post("/v1/tokenize", "unknown_parameter", "promt", promt="a"),
    _post("/v1/tokenize", "invalid_type", "tools", tools=1),
    _post("/v1/tokenize", "invalid_value", "tool_choice", tool_choice="maybe"),
    _post("/v1/tokenize", "missing_required_parameter", "thinking.type", thinking={}),
    _post("/v1/tokenize", "invalid_type", "chat_template_kwargs", chat_template_kwargs=1),
    _post("/v1/detokenize", "missing_required_parameter", "model", model=ABSENT),
    _post("/v1/detokenize", "missing_required_parameter", "tokens", tokens=ABSENT),
    _post("/v1/detokenize", "invalid_type", "tokens[1]", tokens=[5, "6"]),
    _post("/v1/detokenize", "invalid_token_id", "tokens[0]", tokens=[-1]),
    _post("/v1/detokenize", "invalid_token_id", "tokens[1]", tokens=[0, VOCABULARY]),
    _post("/v1/files", "missing_required_parameter", "purpose", purpose=ABSENT),
    _post("/v1/files", "missing_required_parameter", "file", file=ABSENT),
    *(_post("/v1/files", "unsupported_value", "purpose", purpose=purpose)
      for purpose in ("assistants", "fine-tune", "vision", "user_data", "evals", "batch_output")),
    _post("/v1/files", "invalid_value", "expires_after[anchor]",
          **{"expires_after[anchor]": "now", "expires_after[seconds]": "3600"}),
    *(_post("/v1/files", "invalid_value", "expires_after[seconds]",
            **{"expires_after[anchor]": "created_at", "expires_after[seconds]": seconds})
      for seconds in ("3599", "x", str(30 * DAY + 1))),
    _post("/v1/files", "unknown_parameter", "name", name="a"),
    *(_list("/v1/files", "limit", value) for value in (0, 10_001, "x")),
    *(_list(path, "order", "up") for path in ("/v1/files", "/v1/batches")),
    *(_list(path, "after", "nobody") for path in ("/v1/files", "/v1/batches")),
    *(_list("/v1/batches", "limit", value) for value in (0, 101, "x")),
    *(_post("/v1/batches", "missing_required_parameter", name, **{name: ABSENT})
      for name in ("input_file_id", "endpoint")),
    _post("/v1/batches", "invalid_value", "input_file_id", requests=[{"body": {}}]),
    _post("/v1/batches", "empty_array", "requests", requests=[], input_file_id=ABSENT),
    Denied("POST", "/v1/batches", 404, "file_not_found", "input_file_id",
           {"input_file_id": "nobody"}),
    _post("/v1/batches", "invalid_file_purpose", "input_file_id", input_file_id="{output}"),
    *(_post("/v1/batches", "invalid_value", "endpoint", endpoint=endpoint) for endpoint in
      ("/v1/embeddings", "/v1/moderations", "/v1/images/generations")),
    *(_post("/v1/batches", "invalid_value", "completion_window", completion_window=window)
      for window in ("0h", "169h", "8d", "0m", "-5m", "")),
    _post("/v1/batches", "invalid_value", "on_late", on_late="run"),
    _post("/v1/batches", "invalid_value", "metadata", metadata={str(n): "" for n in range(17)}),
    _post("/v1/batches", "invalid_value", "metadata", metadata={"k" * 65: ""}),
    _post("/v1/batches", "invalid_value", "metadata.k", metadata={"k": "v" * 513}),
    _post("/v1/batches", "invalid_type", "metadata.k", metadata={"k": 1}),
    _post("/v1/batches", "integer_below_min_value", "output_expires_after.seconds",
          **_expires(3599)),
    _post("/v1/batches", "integer_above_max_value", "output_expires_after.seconds",
          **_expires(30 * DAY + 1)),
    _post("/v1/batches", "invalid_value", "output_expires_after.anchor", **_expires(3600, "now")),
    _post("/v1/batches", "invalid_value", "on_invalid", on_invalid="stop"),
    _post("/v1/batches", "invalid_type", "receipts", receipts="yes"),
    _post("/v1/batches", "invalid_type", "close", close="yes"),
    _post("/v1/batches", "invalid_type", "dry_run", dry_run=1),
    _post("/v1/batches", "integer_below_min_value", "pilot", pilot=0),
    *(_post("/v1/uploads", "missing_required_parameter", name, **{name: ABSENT})
      for name in ("filename", "purpose", "bytes", "mime_type")),
    _post("/v1/uploads", "invalid_value", "purpose", purpose="fine-tune"),
    _post("/v1/uploads", "integer_below_min_value", "bytes", bytes=0),
    _post("/v1/uploads", "integer_below_min_value", "expires_after.seconds",
          expires_after={"anchor": "created_at", "seconds": 1}),
    Denied("POST", "/v1/batches/{batch}/resubmit", 409, "nothing_to_resubmit", "id"),
)  # fmt: skip
