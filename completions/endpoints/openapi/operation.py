"""An operation of the API, and the parameters that several operations have."""

from dataclasses import dataclass
from typing import Any

from completions.endpoints.openapi.examples import Example, Shape
from completions.endpoints.openapi.shapes import ERROR
from completions.requests.fields.objects import StrictObject

JSON = "application/json"
EVENTS = "text/event-stream"
_AUTHENTICATED = (401, 403, 500, 503)
READ_ERRORS = (*_AUTHENTICATED, 400, 404)
WRITE_ERRORS = (*READ_ERRORS, 413, 415)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    summary: str
    response: object
    """The body, as an example in `shapes`."""
    description: str = ""
    request: type[StrictObject[Any]] | Shape | None = None
    """The class of a JSON body, or the schema of a multipart body."""
    example: object = None
    """An example of an accepted JSON body."""
    parameters: tuple[Shape, ...] = ()
    statuses: tuple[int, ...] = (200,)
    """Statuses that are not errors. A 304 has no body."""
    errors: tuple[int, ...] = ()
    """Error statuses besides READ_ERRORS or, for a POST, WRITE_ERRORS."""
    error: Example = ERROR
    """The body of errors."""
    media_types: tuple[str, ...] = (JSON,)
    """Media types of a response with status 200."""
    is_public: bool = False
    """Whether the operation needs no API key, and has no errors of its own."""


def make_query(name: str, schema: str | Shape, description: str, location: str = "query") -> Shape:
    """Return a query parameter; `schema` may be just a type."""
    schema_object = {"type": schema} if isinstance(schema, str) else schema
    return {"name": name, "in": location, "schema": schema_object, "description": description}


def make_header(name: str, schema: str, description: str) -> Shape:
    return make_query(name, schema, description, "header")


INCLUDE_META = make_header(
    "x-include-meta", "boolean", "Add `meta` to the response: timings, the worker and warnings."
)
SSE_IDS = make_query("sse_ids", "boolean", "Number the events of the stream with `id:` lines.")
ONCE = make_header(
    "Idempotency-Key",
    "string",
    "A repeated request with the same key and body returns the first response.",
)
SUBMIT = (
    make_header(
        "Prefer",
        "string",
        "`respond-async` returns 202 at once; with `, wait=N`, after at most N seconds.",
    ),
    ONCE,
    INCLUDE_META,
    SSE_IDS,
)
POLL = (
    make_query("wait", "number", "Seconds to wait for the end, at most 30."),
    make_query("stream", "boolean", "Stream the events, from the first or after `starting_after`."),
    make_query("starting_after", "integer", "The sequence number of the last event received."),
    make_header("Last-Event-ID", "integer", "The same, as browsers send it on a reconnect."),
    INCLUDE_META,
    SSE_IDS,
    make_header("If-None-Match", "string", "The ETag of the last response; 304 if unchanged."),
)
PAGE = (
    make_query("limit", "integer", "Rows per page."),
    make_query(
        "after", "string", "The id of the last row of the page before, also if it was deleted."
    ),
    make_query("order", {"type": "string", "enum": ["asc", "desc"]}, "Order by creation time."),
)
