"""Every operation of the API: its purpose, what it takes and returns, and an example."""

from collections.abc import Mapping
from typing import Any

from completions.batches.export.encoding import ENCODINGS
from completions.endpoints.adapters import (
    LoadAdapterRequestObject,
    UnloadAdapterRequestObject,
)
from completions.endpoints.batch_exports import DEFAULT_FORMAT
from completions.endpoints.batch_request import BatchRequestObject
from completions.endpoints.grammars import ValidateRequestObject
from completions.endpoints.openapi import examples, shapes
from completions.endpoints.openapi.examples import Shape
from completions.endpoints.openapi.operation import (
    EVENTS,
    JSON,
    ONCE,
    PAGE,
    POLL,
    SUBMIT,
    Operation,
    make_header,
    make_query,
)
from completions.endpoints.openapi.response_operations import RESPONSE_OPERATIONS
from completions.endpoints.openapi.shapes import MODEL_ID
from completions.endpoints.sessions import SessionRequestObject
from completions.endpoints.tokenization import DetokenizeRequestObject, TokenizeRequestObject
from completions.endpoints.uploads import CompleteUploadRequestObject, UploadRequestObject
from completions.requests.chat import ChatRequestObject
from completions.requests.completion import CompletionRequestObject
from completions.requests.fields.base import T
from completions.requests.fields.objects import StrictObject
from completions.requests.native import SGLangGenerateObject, VLLMGenerateObject

_USAGE_QUERY = (
    make_query(
        "start_time", "integer", "Unix seconds; by default as many buckets as `limit` allows."
    ),
    make_query("end_time", "integer", "Unix seconds, exclusive; by default now."),
    make_query(
        "bucket_width",
        {"type": "string", "enum": ["1d", "1h"]},
        "By default 1d. Days begin at midnight UTC.",
    ),
    make_query(
        "group_by",
        "string",
        "Any of model, api_key_id and adapter, comma-separated or repeated; "
        "by default model,api_key_id.",
    ),
    make_query("models", "string", "Only these models."),
    make_query("api_key_ids", "string", "Only these keys, as `sk-` and six characters."),
    make_query("batch", "string", "true: only lines of batches; false: all else; or a batch's id."),
    make_query(
        "limit", "integer", "Buckets per page: by default 7 days or 24 hours, at most 31 or 168."
    ),
    make_query("page", "string", "`next_page` of the page before."),
)
_UPLOAD: Shape = {
    "type": "object",
    "properties": {
        "purpose": {"const": "batch"},
        "file": {"type": "string", "format": "binary"},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": {"type": "integer"},
    },
    "required": ["purpose", "file"],
}


_UPLOADED_PART: Shape = {
    "type": "object",
    "properties": {"data": {"type": "string", "format": "binary"}},
    "required": ["data"],
}
_PART = {
    "id": "part_1",
    "object": examples.make_const("upload.part"),
    "created_at": 1770000000,
    "upload_id": "upload_1",
}


def _make_generation(
    what: str, path: str, request: type[StrictObject[T]], response: Any, **example: Any
) -> dict[str, Operation]:
    """Return the operations that completions and chat completions share."""
    row = {"id": response.value["id"], "status": "queued"}
    return {
        f"POST {path}": Operation(
            f"Create a {what}",
            response,
            "Returns the result, streams it, or returns a background job to poll.",
            request,
            {"model": MODEL_ID, **example},
            SUBMIT,
            statuses=(200, 202),
            errors=(409, 422, 429, 504),
            media_types=(JSON, EVENTS),
        ),
        f"GET {path}": Operation(
            f"List background {what}s",
            examples.make_page(examples.make_any_object(**row)),
            parameters=(*PAGE, make_query("model", "string", "Only those of this model.")),
        ),
        f"GET {path}/{{job_id}}": Operation(
            f"Poll a {what}, or stream it again",
            response,
            parameters=POLL,
            statuses=(200, 304),
            media_types=(JSON, EVENTS),
        ),
        f"DELETE {path}/{{job_id}}": Operation(
            f"Delete a {what} that has ended", shapes.DELETED, errors=(409,)
        ),
        f"POST {path}/{{job_id}}/cancel": Operation(
            f"Cancel a {what}", response, "A job that has ended does not change."
        ),
    }


OPERATIONS: Mapping[str, Mapping[str, Operation]] = {
    "completions": _make_generation(
        "completion",
        "/v1/completions",
        CompletionRequestObject,
        shapes.COMPLETION,
        prompt=[9703],
        max_tokens=2,
        temperature=0,
        ebnf='root ::= "A" | "B"',
    ),
    "chat completions": _make_generation(
        "chat completion",
        "/v1/chat/completions",
        ChatRequestObject,
        shapes.CHAT_COMPLETION,
        messages=[{"role": "user", "content": "Name a colour."}],
        max_tokens=16,
    ),
    "other engines' routes": {
        "POST /generate": Operation(
            "Create a completion, as SGLang's own route does",
            shapes.SGLANG_OUTPUT,
            "An array of outputs for an array of prompts and for n above 1. Each event of a stream "
            "has the whole output so far. The job can be polled as a completion.",
            SGLangGenerateObject,
            {"model": MODEL_ID, "input_ids": [9703], "sampling_params": {"max_new_tokens": 2}},
            SUBMIT,
            statuses=(200, 202),
            errors=(409, 422, 429, 504),
            media_types=(JSON, EVENTS),
        ),
        "POST /inference/v1/generate": Operation(
            "Create a completion of token ids, as vLLM's route for them does",
            shapes.VLLM_RESPONSE,
            "The job can be polled as a completion.",
            VLLMGenerateObject,
            {"model": MODEL_ID, "token_ids": [9703], "sampling_params": {"max_tokens": 2}},
            SUBMIT,
            statuses=(200, 202),
            errors=(409, 422, 429, 504),
            media_types=(JSON, EVENTS),
        ),
    },
    **RESPONSE_OPERATIONS,
    "sessions": {
        "POST /v1/sessions": Operation(
            "Create a session: a conversation whose token ids the service keeps",
            shapes.SESSION,
            "A completion with `session: new` makes one too.",
            SessionRequestObject,
            {"model": MODEL_ID, "on_drift": "keep"},
            errors=(429,),
        ),
        "GET /v1/sessions": Operation(
            "List sessions", examples.make_page(shapes.SESSION), parameters=PAGE
        ),
        "GET /v1/sessions/{session_id}": Operation("Get a session with its turns", shapes.SESSION),
        "DELETE /v1/sessions/{session_id}": Operation(
            "Delete a session and its turns", shapes.DELETED
        ),
        "GET /v1/sessions/{session_id}/trajectory": Operation(
            "Get a session's token ids, log probabilities and receipts",
            '{"session": "session_1", "turn": "chatcmpl-1", ...}',
            "JSON Lines, a turn on each; a turn comes after those that it continues.",
            parameters=(make_query("choice", "string", "Only the turns up to this choice."),),
            errors=(409,),
            media_types=("application/jsonl",),
        ),
    },
    "models": {
        "GET /v1/models": Operation(
            "List the models that the key may use, and their adapters", shapes.MODELS
        ),
        "GET /v1/models/{model_id}": Operation(
            "Get a model", shapes.MODEL, "The id of an adapter is `base:adapter`."
        ),
    },
    "adapters": {
        "POST /v1/load_lora_adapter": Operation(
            "Register a LoRA adapter, or replace one",
            "Success: LoRA adapter 'polite' added successfully.",
            "For admin keys. It is registered once a worker has loaded it. Jobs that were admitted "
            "before keep the version that they were admitted with.",
            request=LoadAdapterRequestObject,
            example={"lora_name": "polite", "lora_path": "polite"},
            errors=(429, 504),
            media_types=("text/plain",),
        ),
        "POST /v1/unload_lora_adapter": Operation(
            "Remove a LoRA adapter",
            "Success: LoRA adapter 'polite' removed successfully.",
            "For admin keys. Jobs that were admitted before keep it.",
            request=UnloadAdapterRequestObject,
            example={"lora_name": "polite"},
            errors=(429,),
            media_types=("text/plain",),
        ),
    },
    "tokens": {
        "POST /v1/tokenize": Operation(
            "Convert texts or messages to token ids",
            shapes.TOKENS,
            "For an array of texts, `tokens` and `count` are arrays with one value for each.",
            request=TokenizeRequestObject,
            example={"model": MODEL_ID, "prompt": "Hello"},
        ),
        "POST /v1/detokenize": Operation(
            "Convert token ids to text",
            {"prompt": "Hello"},
            request=DetokenizeRequestObject,
            example={"model": MODEL_ID, "tokens": [19556]},
        ),
    },
    "grammars": {
        "POST /v1/grammars/validate": Operation(
            "Check a constraint, and whether a text matches it",
            shapes.GRAMMAR_VALIDATION,
            "A constraint that cannot be used is a result (`valid: false`), not an error.",
            ValidateRequestObject,
            {"model": MODEL_ID, "regex": "[a-z]+", "text": "abc"},
        ),
    },
    "usage": {
        "GET /v1/usage": Operation(
            "Get the usage of the key",
            shapes.USAGE_PAGE,
            "An admin key gets the usage of its whole organization.",
            parameters=_USAGE_QUERY,
        ),
    },
    "files": {
        "POST /v1/files": Operation(
            "Upload a file of requests", shapes.FILE, request=_UPLOAD, errors=(409,)
        ),
        "GET /v1/files": Operation(
            "List files",
            examples.make_page(shapes.FILE),
            parameters=(*PAGE, make_query("purpose", "string", "Only files of this purpose.")),
        ),
        "GET /v1/files/{file_id}": Operation("Get a file's metadata", shapes.FILE),
        "DELETE /v1/files/{file_id}": Operation("Delete a file", shapes.DELETED, errors=(409,)),
        "GET /v1/files/{file_id}/content": Operation(
            "Get a file's content",
            '{"custom_id": "r-1", ...}',
            "While a batch runs, its files hold the results so far.",
            parameters=(make_header("Range", "string", "`bytes=N-`: the rest from byte N on."),),
            statuses=(200, 206),
            errors=(416,),
            media_types=("application/jsonl",),
        ),
    },
    "uploads": {
        "POST /v1/uploads": Operation(
            "Begin to upload a file in parts",
            shapes.UPLOAD,
            "Parts can be added for 24 hours.",
            UploadRequestObject,
            {"filename": "a.jsonl", "purpose": "batch", "bytes": 9, "mime_type": "text/jsonl"},
        ),
        "GET /v1/uploads/{upload_id}": Operation("Get an upload", shapes.UPLOAD),
        "POST /v1/uploads/{upload_id}/parts": Operation(
            "Add a part of at most 64 MiB", _PART, request=_UPLOADED_PART, errors=(409,)
        ),
        "POST /v1/uploads/{upload_id}/complete": Operation(
            "Make the file of the parts",
            shapes.UPLOAD,
            "A repeated call returns the same file.",
            CompleteUploadRequestObject,
            {"part_ids": ["part_1", "part_2"]},
            errors=(409,),
        ),
        "POST /v1/uploads/{upload_id}/cancel": Operation(
            "Cancel an upload", shapes.UPLOAD, "An upload that has ended does not change."
        ),
    },
    "batches": {
        "POST /v1/batches": Operation(
            "Create a batch of the requests in a file",
            shapes.BATCH,
            request=BatchRequestObject,
            parameters=(ONCE,),
            errors=(409, 422, 429),
            example={
                "input_file_id": "file-1",
                "endpoint": "/v1/completions",
                "completion_window": "24h",
            },
        ),
        "GET /v1/batches": Operation(
            "List batches", examples.make_page(shapes.BATCH), parameters=PAGE
        ),
        "GET /v1/batches/{batch_id}": Operation("Get a batch and its progress", shapes.BATCH),
        "GET /v1/batches/{batch_id}/export": Operation(
            "Get the results of a batch that has ended as rows of typed columns",
            '{"custom_id": "r-1", ...}',
            "One row for each line, with a column for each property of the JSON Schema.",
            parameters=(
                make_query(
                    "format",
                    {"type": "string", "enum": list(ENCODINGS), "default": DEFAULT_FORMAT},
                    "JSON lines, CSV or Parquet.",
                ),
            ),
            errors=(409,),
            media_types=tuple(each.media_type for each in ENCODINGS.values()),
        ),
        "POST /v1/batches/{batch_id}/start": Operation(
            "Run what the pilot of a dry run left",
            shapes.BATCH,
            "A batch that is not held does not change.",
        ),
        "POST /v1/batches/{batch_id}/cancel": Operation(
            "Cancel a batch",
            shapes.BATCH,
            "The results so far are kept. A batch that has ended does not change.",
        ),
        "POST /v1/batches/{batch_id}/resubmit": Operation(
            "Create a batch of the failed lines of another",
            shapes.BATCH,
            "The other batch must have ended.",
            parameters=(ONCE,),
            errors=(409, 422, 429),
        ),
    },
    "health": {
        "GET /healthz": Operation(
            "Check that the web process is alive",
            examples.make_any_object(status="ok"),
            is_public=True,
        ),
        "GET /readyz": Operation(
            "Check that the service can run a completion now",
            examples.make_any_object(status="ready"),
            statuses=(200, 503),
            is_public=True,
        ),
        "GET /v1/openapi.json": Operation(
            "Get this document", examples.make_any_object(openapi="3.1.1"), is_public=True
        ),
    },
}
"""Operations by tag, then by method and path. Paths are in OpenAPI's notation."""
