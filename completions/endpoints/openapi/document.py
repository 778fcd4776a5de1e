"""Writes the OpenAPI 3.1 document from the table of operations."""

from functools import lru_cache
from http import HTTPStatus
from typing import Any

from completions.endpoints.openapi import shapes
from completions.endpoints.openapi.operations import EVENTS, JSON, OPERATIONS, Operation, Parameter
from completions.endpoints.openapi.shapes import Shape
from completions.requests.fields.objects import StrictSerializer

_INFO = {
    "title": "Quire",
    "version": "1",
    "description": "Completions of token-ID prompts and chats, constrained by grammars.",
}
_BEARER = "ApiKey"
_SECURITY_SCHEMES = {_BEARER: {"type": "http", "scheme": "bearer", "bearerFormat": "sk-..."}}
_NAMES = {id(shape): name for name, shape in shapes.NAMED.items()}


@lru_cache(maxsize=1)
def document() -> dict[str, Any]:
    """Return the document. Do not change it: every caller gets the same object."""
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, operation)
    requests = {each.request for each in OPERATIONS.values() if each.request is not None}
    schemas = {_name(serializer): serializer().to_schema() for serializer in requests}
    schemas |= {name: _properties(shape) for name, shape in shapes.NAMED.items()}
    return {
        "openapi": "3.1.1",
        "info": _INFO,
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": _SECURITY_SCHEMES,
        },
    }


def _operation(method: str, path: str, operation: Operation) -> dict[str, Any]:
    written: dict[str, Any] = {
        "operationId": _operation_id(method, path),
        "summary": operation.summary,
        "tags": [operation.tag],
        "security": [] if operation.public else [{_BEARER: []}],
        "responses": _responses(operation),
    }
    if operation.description:
        written["description"] = operation.description
    if parameters := [*_path_parameters(path), *map(_parameter, operation.parameters)]:
        written["parameters"] = parameters
    if body := _request_content(operation):
        written["requestBody"] = {"required": True, "content": body}
    return written


def _operation_id(method: str, path: str) -> str:
    """`GET /v1/files/{file_id}` becomes `get_files_file_id`."""
    parts = path.removeprefix("/v1").replace("{", "").replace("}", "").split("/")
    return "_".join([method.lower(), *filter(None, parts)]).replace(".", "_")


def _path_parameters(path: str) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return [
        {"name": name, "in": "path", "required": True, "schema": shapes.STRING} for name in names
    ]


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "schema": parameter.schema,
        "description": parameter.description,
    }


def _request_content(operation: Operation) -> dict[str, Any]:
    """The request body by media type; empty if the operation takes none."""
    if operation.form is not None:
        return {"multipart/form-data": {"schema": operation.form}}
    if operation.request is None:
        return {}
    return {JSON: _media(_reference(_name(operation.request)), operation.example)}


def _responses(operation: Operation) -> dict[str, Any]:
    written = {}
    for status, shape in operation.responses.items():
        written[str(status)] = response = _response(status)
        if shape is None:
            continue
        first, *others = operation.media_types if status == HTTPStatus.OK else (JSON,)
        example = operation.response_example if status == HTTPStatus.OK else None
        response["content"] = {first: _media(_schema(shape), example)}
        for other in others:
            response["content"][other] = _media(_schema(shapes.EVENT if other == EVENTS else shape))
    for status in sorted(operation.errors):
        written[str(status)] = {
            **_response(status),
            "content": {JSON: _media(_schema(shapes.ERROR))},
        }
    return written


def _response(status: int) -> dict[str, Any]:
    return {"description": HTTPStatus(status).phrase}


def _media(schema: Shape, example: Any = None) -> dict[str, Any]:
    return {"schema": schema} if example is None else {"schema": schema, "example": example}


def _schema(shape: Any) -> Any:
    """The shape, with a reference in place of every shape that has a name."""
    name = _NAMES.get(id(shape))
    return _properties(shape) if name is None else _reference(name)


def _properties(shape: Any) -> Any:
    if isinstance(shape, dict):
        return {name: _schema(each) for name, each in shape.items()}
    return [_schema(each) for each in shape] if isinstance(shape, list) else shape


def _reference(name: str) -> Shape:
    return {"$ref": f"#/components/schemas/{name}"}


def _name(serializer: type[StrictSerializer]) -> str:
    return serializer.__name__.removesuffix("Serializer")
