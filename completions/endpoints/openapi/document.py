"""Writes the OpenAPI 3.1 document from the table of operations, and serves it."""

from functools import lru_cache
from http import HTTPStatus
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from completions.endpoints.openapi import examples, shapes
from completions.endpoints.openapi.examples import Shape
from completions.endpoints.openapi.operation import (
    EVENTS,
    JSON,
    READ_ERRORS,
    WRITE_ERRORS,
    Operation,
)
from completions.endpoints.openapi.operations import OPERATIONS
from completions.http.base import APIRequest, AsyncAPIView
from completions.http.bodies import JSONResponse

_BEARER = "ApiKey"


@lru_cache(maxsize=1)
def make_document() -> dict[str, object]:
    """Return the document. Do not modify it: every caller gets the same object."""
    paths: dict[str, dict[str, object]] = {}
    schemas = dict(examples.SCHEMAS)
    for tag, operations in OPERATIONS.items():
        for key, operation in operations.items():
            method, path = key.split()
            paths.setdefault(path, {})[method.lower()] = _make_operation(
                method, path, tag, operation
            )
            if isinstance(operation.request, type):
                schemas[_make_name(operation.request)] = operation.request().to_schema()
    return {
        "openapi": "3.1.1",
        "info": {
            "title": "Quire",
            "version": "1",
            "description": "Completions of token-ID prompts and chats, constrained by grammars.",
        },
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {
                _BEARER: {"type": "http", "scheme": "bearer", "bearerFormat": "sk-..."}
            },
        },
    }


def _make_operation(method: str, path: str, tag: str, operation: Operation) -> dict[str, object]:
    parts = path.removeprefix("/v1").strip("/").split("/")
    in_path = [
        {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
        for part in parts
        if part.startswith("{")
    ]
    result: dict[str, object] = {
        "operationId": "_".join([method.lower(), *(p.strip("{}") for p in parts)]).replace(
            ".", "_"
        ),
        "summary": operation.summary,
        "description": operation.description,
        "tags": [tag],
        "security": [] if operation.is_public else [{_BEARER: []}],
        "parameters": [*in_path, *operation.parameters],
        "responses": _make_responses(method, operation),
    }
    if isinstance(operation.request, type):
        schema = {"$ref": f"#/components/schemas/{_make_name(operation.request)}"}
        content = {JSON: {"schema": schema, "example": operation.example}}
        result["requestBody"] = {"required": True, "content": content}
    elif operation.request is not None:
        content = {"multipart/form-data": {"schema": operation.request}}
        result["requestBody"] = {"required": True, "content": content}
    return result


def _make_responses(method: str, operation: Operation) -> dict[str, object]:
    errors: tuple[int, ...] = ()
    if not operation.is_public:
        errors = *(WRITE_ERRORS if method == "POST" else READ_ERRORS), *operation.errors
    responses: dict[str, Any] = {
        str(status): {"description": HTTPStatus(status).phrase}
        for status in (*operation.statuses, *sorted(errors))
    }
    for status in errors:
        responses[str(status)]["content"] = {JSON: {"schema": operation.error.schema}}
    body: Shape = {"schema": examples.make_schema(operation.response)}
    for status in operation.statuses:
        if status == HTTPStatus.OK:
            media_type = {**body, "example": examples.make_value(operation.response)}
            events = {"schema": shapes.EVENT.schema}
            content = {
                kind: events if kind == EVENTS else media_type for kind in operation.media_types
            }
            responses["200"]["content"] = content
        elif status != HTTPStatus.NOT_MODIFIED:
            responses[str(status)]["content"] = {JSON: body}
    return responses


def _make_name(request: type) -> str:
    return request.__name__.removesuffix("Object")


class OpenAPIView(AsyncAPIView):
    """Serves the document without a key."""

    authenticated = False

    async def get(self, request: APIRequest) -> JSONResponse:
        return JSONResponse(make_document())


_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page's own scripts only, and no code in texts: it holds an API key."""


@require_GET
def show_docs(request: HttpRequest) -> HttpResponse:
    """Swagger UI for the document; this server hosts all its assets."""
    response = render(request, "docs.html")
    response.headers["Content-Security-Policy"] = _POLICY
    return response
