"""drf-spectacular told what it cannot read from asynchronous views: our table, our fields."""

from http import HTTPStatus
from typing import Any

from drf_spectacular.extensions import OpenApiSerializerExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiExample, OpenApiParameter

from completions.endpoints.openapi import shapes
from completions.endpoints.openapi.operations import EVENTS, JSON, OPERATIONS, Operation
from completions.requests.fields import StrictSerializer

BEARER = "ApiKey"


class StrictSerializerExtension(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """A strict serializer writes its schema itself."""

    target_class = StrictSerializer
    match_subclasses = True

    def map_serializer(self, auto_schema: AutoSchema, direction: str) -> dict[str, Any]:
        schema: dict[str, Any] = self.target.to_schema()
        return schema


class Schema(AutoSchema):
    """The documentation of one handler."""

    @property
    def operation(self) -> Operation:
        return OPERATIONS[self.method, self.path]

    def is_excluded(self) -> bool:
        return (self.method, self.path) not in OPERATIONS

    def get_summary(self) -> str:
        return self.operation.summary

    def get_description(self) -> str:  # type: ignore[override] # drf-spectacular's, not DRF's
        return self.view.__doc__ or ""

    def get_tags(self) -> list[str]:
        return [self.operation.tag]

    def get_operation_id(self) -> str:
        parts = self.path.removeprefix("/v1").replace("{", "").replace("}", "").split("/")
        return "_".join([self.method.lower(), *filter(None, parts)]).replace(".", "_")

    def get_auth(self) -> list[dict[str, list[str]]]:
        return [] if self.operation.public else [{BEARER: []}]

    def get_override_parameters(self) -> list[Any]:
        return [
            OpenApiParameter(each.name, each.schema, each.place, description=each.description)
            for each in self.operation.parameters
        ]

    def get_request_serializer(self) -> Any:
        if self.operation.form is not None:
            return {"multipart/form-data": self.operation.form}
        return self.operation.request and {"application/json": self.operation.request}

    def get_response_serializers(self) -> Any:
        answers: dict[Any, Any] = {
            (str(status), media_type): shapes.EVENT if media_type == EVENTS else shape
            for status, shape in self.operation.answers.items()
            for media_type in (self.operation.media_types if status == HTTPStatus.OK else (JSON,))
        }
        refusals = dict.fromkeys(map(str, sorted(self.operation.refusals)), shapes.ERROR)
        return {**answers, **refusals}

    def get_examples(self) -> list[OpenApiExample]:
        operation = self.operation
        examples = []
        if operation.example is not None:
            examples.append(OpenApiExample("request", operation.example, request_only=True))
        if operation.answer_example is not None:
            examples.append(
                OpenApiExample(
                    "answer", operation.answer_example, response_only=True, status_codes=["200"],
                    media_type=operation.media_types[0],
                )
            )  # fmt: skip
        return examples
