"""Every operation of the API: what it is for, what it takes and answers, with an example."""

from dataclasses import dataclass, field
from typing import Any, Literal

from completions.endpoints.batches import BatchRequestSerializer
from completions.endpoints.grammars import ValidateRequestSerializer
from completions.endpoints.openapi import shapes
from completions.endpoints.openapi.shapes import Shape
from completions.endpoints.tokenization import (
    DetokenizeRequestSerializer,
    TokenizeRequestSerializer,
)
from completions.requests.chat import ChatRequestSerializer
from completions.requests.completion import CompletionRequestSerializer
from completions.requests.fields import StrictSerializer

JSON = "application/json"
EVENTS = "text/event-stream"
MODEL_ID = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True)
class Parameter:
    """Of the query, or a header."""

    name: str
    schema: Shape
    description: str
    place: Literal["query", "path", "header", "cookie"] = "query"


@dataclass(frozen=True, slots=True)
class Operation:
    """`answers` are schemas of JSON by status; `refusals` the statuses of error envelopes."""

    summary: str
    answers: dict[int, Shape]
    refusals: tuple[int, ...]
    request: type[StrictSerializer] | None = None
    example: Any = None
    """A body, or what to send where there is none."""
    answer_example: Any = None
    parameters: tuple[Parameter, ...] = ()
    media_types: tuple[str, ...] = (JSON,)
    """Of the answer with status 200."""
    form: Shape | None = None
    """Of a multipart body."""
    public: bool = False
    tag: str = field(default="", compare=False)


_AUTHENTICATED = (401, 403, 500, 503)
_READS = (*_AUTHENTICATED, 400, 404)
_WRITES = (*_READS, 413, 415)
_SUBMITS = (*_WRITES, 409, 422, 429, 504)

_PREFER = Parameter(
    "Prefer", shapes.STRING, "respond-async[, wait=N]: 202 after N seconds at most.", "header"
)
_KEY = Parameter(
    "Idempotency-Key", shapes.STRING, "The same key and body again get the first answer.", "header"
)
_META = Parameter(
    "x-include-meta", shapes.BOOLEAN, "Add `meta`: how the request was run, and warnings.", "header"
)
_KNOWN = Parameter("If-None-Match", shapes.STRING, "The ETag of the state already seen.", "header")
_IDS = Parameter("sse_ids", shapes.BOOLEAN, "Number the events of a stream with `id:` lines.")
_POLL = (
    Parameter("wait", shapes.NUMBER, "Seconds to wait for the end, up to 30."),
    Parameter("stream", shapes.BOOLEAN, "Stream it, from its beginning or from starting_after on."),
    Parameter("starting_after", shapes.INTEGER, "The sequence number of the last event seen."),
    Parameter("Last-Event-ID", shapes.INTEGER, "The same, as browsers send it.", "header"),
    _META,
    _IDS,
)
_PAGE = (
    Parameter("limit", shapes.INTEGER, "Rows of a page."),
    Parameter("after", shapes.STRING, "The id of the last row seen."),
    Parameter("order", {"type": "string", "enum": ["asc", "desc"]}, "By time of creation."),
)
_FORM: Shape = {
    "type": "object",
    "properties": {
        "purpose": {"const": "batch"},
        "file": {"type": "string", "format": "binary"},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": shapes.INTEGER,
    },
    "required": ["purpose", "file"],
}

_USAGE = {
    "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2,
    "prompt_tokens_details": {"cached_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0}, "reasoning_tokens": 0,
}  # fmt: skip
_COMPLETION = {
    "id": "cmpl-6f9619ff8b86d011b42d00c04fc964ff", "object": "text_completion",
    "created": 1770000000, "model": MODEL_ID,
    "choices": [
        {"index": 0, "text": "A", "logprobs": None, "finish_reason": "stop", "matched_stop": None}
    ],
    "usage": _USAGE,
}  # fmt: skip
_CHAT = {
    **_COMPLETION, "id": "chatcmpl-6f9619ff8b86d011b42d00c04fc964ff", "object": "chat.completion",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Blue."}, "logprobs": None,
         "finish_reason": "stop", "matched_stop": 2}
    ],
}  # fmt: skip
_FILE = {
    "id": "file-1", "object": "file", "bytes": 120, "created_at": 1770000000,
    "filename": "lines.jsonl", "purpose": "batch", "status": "processed",
}  # fmt: skip
_BATCH = {
    "id": "batch_1", "object": "batch", "endpoint": "/v1/completions", "input_file_id": "file-1",
    "completion_window": "24h", "status": "in_progress", "created_at": 1770000000,
    "request_counts": {"total": 2, "completed": 1, "failed": 0},
}  # fmt: skip
_MODEL = {
    "id": MODEL_ID, "object": "model", "created": 1770000000, "owned_by": "quire",
    "root": MODEL_ID, "parent": None, "status": "loaded", "max_model_len": 8192,
    "vocab_size": 49152, "max_token_id": 49151, "eos_token_ids": [2], "default_max_tokens": 16,
    "prices_per_million_tokens": None, "capabilities": {"token_prompts": True, "adapters": []},
}  # fmt: skip


_USAGE_QUERY = (
    Parameter("start_time", shapes.INTEGER, "Unix seconds; by default as many buckets as `limit`."),
    Parameter("end_time", shapes.INTEGER, "Unix seconds, exclusive; now by default."),
    Parameter(
        "bucket_width", {"type": "string", "enum": ["1d", "1h"]}, "1d by default; days are UTC's."
    ),
    Parameter(
        "group_by", shapes.STRING,
        "Some of model, api_key_id, adapter, with commas or repeated; model,api_key_id by default.",
    ),
    Parameter("models", shapes.STRING, "Only these."),
    Parameter("api_key_ids", shapes.STRING, "Only these, as `sk-` and six characters."),
    Parameter("limit", shapes.INTEGER, "Buckets: 7 of at most 31 days, 24 of at most 168 hours."),
    Parameter("page", shapes.STRING, "`next_page` of the page before."),
)  # fmt: skip
_USAGE_PAGE = {
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


def _page(row: Any) -> dict[str, Any]:
    return {
        "object": "list", "data": [row], "first_id": row["id"], "last_id": row["id"],
        "has_more": False,
    }  # fmt: skip


def _submission(
    what: str, request: type[StrictSerializer], shape: Shape, example: Any, answer: Any
) -> Operation:
    return Operation(
        f"Create a {what}: answered when it is done, as a stream, or to be polled",
        {200: shape, 202: shape}, _SUBMITS, request, example, answer,
        parameters=(_PREFER, _KEY, _META, _IDS), media_types=(JSON, EVENTS), tag=f"{what}s",
    )  # fmt: skip


def _life(what: str, path: str, shape: Shape, answer: Any) -> dict[tuple[str, str], Operation]:
    return {
        ("GET", f"{path}/{{job_id}}"): Operation(
            f"Poll a {what}, or stream it again", {200: shape, 304: shapes.ANY}, _READS,
            answer_example=answer, parameters=(*_POLL, _KNOWN), media_types=(JSON, EVENTS),
            tag=f"{what}s",
        ),
        ("DELETE", f"{path}/{{job_id}}"): Operation(
            f"Delete a {what} that has ended", {200: shapes.DELETED}, (*_READS, 409),
            answer_example={"id": answer["id"], "object": answer["object"], "deleted": True},
            tag=f"{what}s",
        ),
        ("GET", path): Operation(
            f"List background {what}s", {200: shapes.page(shapes.OBJECT)}, _READS,
            answer_example=_page({"id": answer["id"], "status": "queued"}), parameters=_PAGE,
            tag=f"{what}s",
        ),
        ("POST", f"{path}/{{job_id}}/cancel"): Operation(
            f"Cancel a {what}; one that has ended stays as it is", {200: shape}, _WRITES,
            answer_example=answer, tag=f"{what}s",
        ),
    }  # fmt: skip


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/completions"): _submission(
        "completion", CompletionRequestSerializer, shapes.COMPLETION,
        {"model": MODEL_ID, "prompt": [9703], "max_tokens": 2, "temperature": 0,
         "ebnf": 'root ::= "A" | "B"'},
        _COMPLETION,
    ),
    **_life("completion", "/v1/completions", shapes.COMPLETION, _COMPLETION),
    ("POST", "/v1/chat/completions"): _submission(
        "chat completion", ChatRequestSerializer, shapes.CHAT_COMPLETION,
        {"model": MODEL_ID, "messages": [{"role": "user", "content": "Name a colour."}],
         "max_tokens": 16},
        _CHAT,
    ),
    **_life("chat completion", "/v1/chat/completions", shapes.CHAT_COMPLETION, _CHAT),
    ("GET", "/v1/models"): Operation(
        "List the models that the key may use, and their adapters", {200: shapes.MODELS}, _READS,
        answer_example={"object": "list", "data": [_MODEL]}, tag="models",
    ),
    ("GET", "/v1/models/{model_id}"): Operation(
        "One model, or base:adapter", {200: shapes.MODEL}, _READS, answer_example=_MODEL,
        tag="models",
    ),
    ("POST", "/v1/tokenize"): Operation(
        "Text or messages to token ids", {200: shapes.TOKENS}, _WRITES,
        TokenizeRequestSerializer, {"model": MODEL_ID, "prompt": "Hello"},
        {"tokens": [19556], "count": 1, "max_model_len": 8192}, tag="tokens",
    ),
    ("POST", "/v1/detokenize"): Operation(
        "Token ids to text", {200: shapes.TEXT}, _WRITES, DetokenizeRequestSerializer,
        {"model": MODEL_ID, "tokens": [19556]}, {"prompt": "Hello"}, tag="tokens",
    ),
    ("POST", "/v1/grammars/validate"): Operation(
        "Is a constraint usable, and does a text fit it", {200: shapes.VERDICT}, _WRITES,
        ValidateRequestSerializer, {"model": MODEL_ID, "regex": "[a-z]+", "text": "abc"},
        {"valid": True, "error": None, "code": None, "line": None, "column": None,
         "pointer": None, "warnings": [], "accepts": True, "matched_prefix": 3},
        tag="grammars",
    ),
    ("GET", "/v1/usage"): Operation(
        "What the key used, or its organization for admin keys", {200: shapes.USAGE_PAGE}, _READS,
        answer_example=_USAGE_PAGE, parameters=_USAGE_QUERY, tag="usage",
    ),
    ("POST", "/v1/files"): Operation(
        "Upload a file of requests", {200: shapes.FILE}, (*_WRITES, 409), answer_example=_FILE,
        form=_FORM, tag="files",
    ),
    ("GET", "/v1/files"): Operation(
        "List files", {200: shapes.page(shapes.FILE)}, _READS, answer_example=_page(_FILE),
        parameters=(*_PAGE, Parameter("purpose", shapes.STRING, "Only these.")), tag="files",
    ),
    ("GET", "/v1/files/{file_id}"): Operation(
        "One file's facts", {200: shapes.FILE}, _READS, answer_example=_FILE, tag="files"
    ),
    ("DELETE", "/v1/files/{file_id}"): Operation(
        "Delete a file", {200: shapes.DELETED}, (*_READS, 409), tag="files",
        answer_example={"id": "file-1", "object": "file", "deleted": True},
    ),
    ("GET", "/v1/files/{file_id}/content"): Operation(
        "Read a file", {200: shapes.STRING}, _READS, media_types=("application/jsonl",),
        answer_example='{"custom_id": "r-1", ...}', tag="files",
    ),
    ("POST", "/v1/batches"): Operation(
        "Run every line of a file", {200: shapes.BATCH}, (*_WRITES, 429), BatchRequestSerializer,
        {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h"},
        _BATCH, tag="batches",
    ),
    ("GET", "/v1/batches"): Operation(
        "List batches", {200: shapes.page(shapes.BATCH)}, _READS, answer_example=_page(_BATCH),
        parameters=_PAGE, tag="batches",
    ),
    ("GET", "/v1/batches/{batch_id}"): Operation(
        "One batch, with its progress", {200: shapes.BATCH}, _READS, answer_example=_BATCH,
        tag="batches",
    ),
    ("POST", "/v1/batches/{batch_id}/cancel"): Operation(
        "Run no more of a batch's lines", {200: shapes.BATCH}, _WRITES, answer_example=_BATCH,
        tag="batches",
    ),
    ("POST", "/v1/batches/{batch_id}/resubmit"): Operation(
        "A new batch of the unfinished lines of one that has ended", {200: shapes.BATCH},
        (*_WRITES, 409, 429), answer_example=_BATCH, tag="batches",
    ),
    ("GET", "/healthz"): Operation(
        "The process answers", {200: shapes.OBJECT}, (), answer_example={"status": "ok"},
        public=True, tag="health",
    ),
    ("GET", "/readyz"): Operation(
        "A completion submitted now would be run", {200: shapes.OBJECT, 503: shapes.OBJECT}, (),
        answer_example={"status": "ready"}, public=True, tag="health",
    ),
    ("GET", "/v1/openapi.json"): Operation(
        "This document", {200: shapes.OBJECT}, (), answer_example={"openapi": "3.1.0"},
        public=True, tag="health",
    ),
}  # fmt: skip
