"""Every operation of the API: its purpose, what it takes and returns, and an example."""

from dataclasses import dataclass
from typing import Any, Literal

from completions.endpoints.batches import BatchRequestSerializer
from completions.endpoints.grammars import ValidateRequestSerializer
from completions.endpoints.openapi import examples, shapes
from completions.endpoints.openapi.shapes import Shape
from completions.endpoints.tokenization import (
    DetokenizeRequestSerializer,
    TokenizeRequestSerializer,
)
from completions.requests.chat import ChatRequestSerializer
from completions.requests.completion import CompletionRequestSerializer
from completions.requests.fields.objects import StrictSerializer

JSON = "application/json"
EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter or a header."""

    name: str
    schema: Shape
    description: str
    place: Literal["query", "header"] = "query"


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    summary: str
    tag: str
    responses: dict[int, Shape | None]
    """Body schema by status; None means that the response has no body."""
    errors: tuple[int, ...] = ()
    """Statuses whose body is an error object."""
    description: str = ""
    request: type[StrictSerializer] | None = None
    """Serializer of a JSON body."""
    form: Shape | None = None
    """Schema of a multipart body."""
    example: Any = None
    """A JSON body that is accepted."""
    response_example: Any = None
    """A body with status 200."""
    parameters: tuple[Parameter, ...] = ()
    media_types: tuple[str, ...] = (JSON,)
    """Of the response with status 200."""
    public: bool = False
    """Whether the operation needs no API key."""


_AUTHENTICATED = (401, 403, 500, 503)
_READS = (*_AUTHENTICATED, 400, 404)
_WRITES = (*_READS, 413, 415)
_SUBMITS = (*_WRITES, 409, 422, 429, 504)

_PREFER = Parameter(
    "Prefer",
    shapes.STRING,
    "`respond-async` returns 202 at once; with `, wait=N`, after at most N seconds.",
    "header",
)
_IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    shapes.STRING,
    "A repeated request with the same key and body returns the first response.",
    "header",
)
_INCLUDE_META = Parameter(
    "x-include-meta",
    shapes.BOOLEAN,
    "Add `meta` to the response: timings, the worker and warnings.",
    "header",
)
_IF_NONE_MATCH = Parameter(
    "If-None-Match", shapes.STRING, "The ETag of the last response; 304 if unchanged.", "header"
)
_SSE_IDS = Parameter("sse_ids", shapes.BOOLEAN, "Number the events of the stream with `id:` lines.")
_POLL = (
    Parameter("wait", shapes.NUMBER, "Seconds to wait for the end, at most 30."),
    Parameter(
        "stream", shapes.BOOLEAN, "Stream the events, from the first or after `starting_after`."
    ),
    Parameter("starting_after", shapes.INTEGER, "The sequence number of the last event received."),
    Parameter(
        "Last-Event-ID", shapes.INTEGER, "The same, as browsers send it on a reconnect.", "header"
    ),
    _INCLUDE_META,
    _SSE_IDS,
)
_PAGE = (
    Parameter("limit", shapes.INTEGER, "Rows per page."),
    Parameter("after", shapes.STRING, "The id of the last row of the page before."),
    Parameter("order", {"type": "string", "enum": ["asc", "desc"]}, "Order by creation time."),
)
_USAGE_QUERY = (
    Parameter(
        "start_time", shapes.INTEGER, "Unix seconds; by default as many buckets as `limit` allows."
    ),
    Parameter("end_time", shapes.INTEGER, "Unix seconds, exclusive; by default now."),
    Parameter(
        "bucket_width",
        {"type": "string", "enum": ["1d", "1h"]},
        "By default 1d. Days begin at midnight UTC.",
    ),
    Parameter(
        "group_by",
        shapes.STRING,
        "Any of model, api_key_id and adapter, comma-separated or repeated; "
        "by default model,api_key_id.",
    ),
    Parameter("models", shapes.STRING, "Only these models."),
    Parameter("api_key_ids", shapes.STRING, "Only these keys, as `sk-` and six characters."),
    Parameter(
        "limit",
        shapes.INTEGER,
        "Buckets per page: by default 7 days or 24 hours, at most 31 or 168.",
    ),
    Parameter("page", shapes.STRING, "`next_page` of the page before."),
)
_UPLOAD: Shape = {
    "type": "object",
    "properties": {
        "purpose": {"const": "batch"},
        "file": {"type": "string", "format": "binary"},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": shapes.INTEGER,
    },
    "required": ["purpose", "file"],
}


def _generation(
    what: str,
    path: str,
    request: type[StrictSerializer],
    shape: Shape,
    example: dict[str, Any],
    response: dict[str, Any],
) -> dict[tuple[str, str], Operation]:
    """The operations that completions and chat completions share."""
    tag = f"{what}s"
    identity = {name: response[name] for name in ("id", "object")}
    return {
        ("POST", path): Operation(
            f"Create a {what}",
            tag,
            {200: shape, 202: shape},
            _SUBMITS,
            "Returns the result, streams it, or returns a background job to poll.",
            request=request,
            example=example,
            response_example=response,
            parameters=(_PREFER, _IDEMPOTENCY_KEY, _INCLUDE_META, _SSE_IDS),
            media_types=(JSON, EVENTS),
        ),
        ("GET", path): Operation(
            f"List background {what}s",
            tag,
            {200: shapes.page(shapes.OBJECT)},
            _READS,
            response_example=examples.page({"id": response["id"], "status": "queued"}),
            parameters=_PAGE,
        ),
        ("GET", f"{path}/{{job_id}}"): Operation(
            f"Poll a {what}, or stream it again",
            tag,
            {200: shape, 304: None},
            _READS,
            response_example=response,
            parameters=(*_POLL, _IF_NONE_MATCH),
            media_types=(JSON, EVENTS),
        ),
        ("DELETE", f"{path}/{{job_id}}"): Operation(
            f"Delete a {what} that has ended",
            tag,
            {200: shapes.DELETED},
            (*_READS, 409),
            response_example={**identity, "deleted": True},
        ),
        ("POST", f"{path}/{{job_id}}/cancel"): Operation(
            f"Cancel a {what}",
            tag,
            {200: shape},
            _WRITES,
            "A job that has ended does not change.",
            response_example=response,
        ),
    }


_MODELS: dict[tuple[str, str], Operation] = {
    ("GET", "/v1/models"): Operation(
        "List the models that the key may use, and their adapters",
        "models",
        {200: shapes.MODELS},
        _READS,
        response_example={"object": "list", "data": [examples.MODEL]},
    ),
    ("GET", "/v1/models/{model_id}"): Operation(
        "Get a model",
        "models",
        {200: shapes.MODEL},
        _READS,
        "The id of an adapter is `base:adapter`.",
        response_example=examples.MODEL,
    ),
}
_TEXTS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/tokenize"): Operation(
        "Convert a text or messages to token ids",
        "tokens",
        {200: shapes.TOKENS},
        _WRITES,
        request=TokenizeRequestSerializer,
        example={"model": examples.MODEL_ID, "prompt": "Hello"},
        response_example={"tokens": [19556], "count": 1, "max_model_len": 8192},
    ),
    ("POST", "/v1/detokenize"): Operation(
        "Convert token ids to text",
        "tokens",
        {200: shapes.TEXT},
        _WRITES,
        request=DetokenizeRequestSerializer,
        example={"model": examples.MODEL_ID, "tokens": [19556]},
        response_example={"prompt": "Hello"},
    ),
    ("POST", "/v1/grammars/validate"): Operation(
        "Check a constraint, and whether a text matches it",
        "grammars",
        {200: shapes.VERDICT},
        _WRITES,
        "A constraint that cannot be used is a result (`valid: false`), not an error.",
        request=ValidateRequestSerializer,
        example={"model": examples.MODEL_ID, "regex": "[a-z]+", "text": "abc"},
        response_example=examples.VERDICT,
    ),
}
_USAGE: dict[tuple[str, str], Operation] = {
    ("GET", "/v1/usage"): Operation(
        "Get the usage of the key",
        "usage",
        {200: shapes.USAGE_PAGE},
        _READS,
        "An admin key gets the usage of its whole organization.",
        response_example=examples.USAGE_PAGE,
        parameters=_USAGE_QUERY,
    ),
}
_FILES: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/files"): Operation(
        "Upload a file of requests",
        "files",
        {200: shapes.FILE},
        (*_WRITES, 409),
        form=_UPLOAD,
        response_example=examples.FILE,
    ),
    ("GET", "/v1/files"): Operation(
        "List files",
        "files",
        {200: shapes.page(shapes.FILE)},
        _READS,
        response_example=examples.page(examples.FILE),
        parameters=(*_PAGE, Parameter("purpose", shapes.STRING, "Only files of this purpose.")),
    ),
    ("GET", "/v1/files/{file_id}"): Operation(
        "Get a file's metadata",
        "files",
        {200: shapes.FILE},
        _READS,
        response_example=examples.FILE,
    ),
    ("DELETE", "/v1/files/{file_id}"): Operation(
        "Delete a file",
        "files",
        {200: shapes.DELETED},
        (*_READS, 409),
        response_example={"id": "file-1", "object": "file", "deleted": True},
    ),
    ("GET", "/v1/files/{file_id}/content"): Operation(
        "Get a file's content",
        "files",
        {200: shapes.STRING},
        _READS,
        "While a batch runs, its files hold the results so far.",
        response_example='{"custom_id": "r-1", ...}',
        media_types=("application/jsonl",),
    ),
}
_BATCHES: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/batches"): Operation(
        "Create a batch of the requests in a file",
        "batches",
        {200: shapes.BATCH},
        (*_WRITES, 429),
        request=BatchRequestSerializer,
        example={
            "input_file_id": "file-1",
            "endpoint": "/v1/completions",
            "completion_window": "24h",
        },
        response_example=examples.BATCH,
    ),
    ("GET", "/v1/batches"): Operation(
        "List batches",
        "batches",
        {200: shapes.page(shapes.BATCH)},
        _READS,
        response_example=examples.page(examples.BATCH),
        parameters=_PAGE,
    ),
    ("GET", "/v1/batches/{batch_id}"): Operation(
        "Get a batch and its progress",
        "batches",
        {200: shapes.BATCH},
        _READS,
        response_example=examples.BATCH,
    ),
    ("POST", "/v1/batches/{batch_id}/cancel"): Operation(
        "Cancel a batch",
        "batches",
        {200: shapes.BATCH},
        _WRITES,
        "The results so far are kept. A batch that has ended does not change.",
        response_example=examples.BATCH,
    ),
    ("POST", "/v1/batches/{batch_id}/resubmit"): Operation(
        "Create a batch of the failed lines of another",
        "batches",
        {200: shapes.BATCH},
        (*_WRITES, 409, 429),
        "The other batch must have ended.",
        response_example=examples.BATCH,
    ),
}
_SERVICE: dict[tuple[str, str], Operation] = {
    ("GET", "/healthz"): Operation(
        "Check that the web process is alive",
        "health",
        {200: shapes.OBJECT},
        response_example={"status": "ok"},
        public=True,
    ),
    ("GET", "/readyz"): Operation(
        "Check that the service can run a completion now",
        "health",
        {200: shapes.OBJECT, 503: shapes.OBJECT},
        response_example={"status": "ready"},
        public=True,
    ),
    ("GET", "/v1/openapi.json"): Operation(
        "Get this document",
        "health",
        {200: shapes.OBJECT},
        response_example={"openapi": "3.1.1"},
        public=True,
    ),
}

OPERATIONS: dict[tuple[str, str], Operation] = {
    **_generation(
        "completion",
        "/v1/completions",
        CompletionRequestSerializer,
        shapes.COMPLETION,
        {
            "model": examples.MODEL_ID,
            "prompt": [9703],
            "max_tokens": 2,
            "temperature": 0,
            "ebnf": 'root ::= "A" | "B"',
        },
        examples.COMPLETION,
    ),
    **_generation(
        "chat completion",
        "/v1/chat/completions",
        ChatRequestSerializer,
        shapes.CHAT_COMPLETION,
        {
            "model": examples.MODEL_ID,
            "messages": [{"role": "user", "content": "Name a colour."}],
            "max_tokens": 16,
        },
        examples.CHAT,
    ),
    **_MODELS,
    **_TEXTS,
    **_USAGE,
    **_FILES,
    **_BATCHES,
    **_SERVICE,
}
"""Operations by (method, path). The path is written as OpenAPI does."""
