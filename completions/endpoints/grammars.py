"""POST /v1/grammars/validate: is a constraint usable, and does a text fit it?"""

from dataclasses import asdict
from typing import Any, NamedTuple

from rest_framework.response import Response

from completions.accounts.keys import Principal
from completions.catalog import model_files
from completions.errors import FieldError
from completions.grammars import Constraint, Verdict
from completions.grammars.exceptions import GrammarOverloadError, GrammarTimeoutError
from completions.http.base import APIRequest, AsyncAPIView
from completions.models import Scope
from completions.requests import judging
from completions.requests.fields.base import TextField
from completions.requests.fields.constraint import CONSTRAINTS, ConstraintFields, constraint_of
from completions.requests.fields.objects import Values
from completions.requests.model import ModelRequestSerializer, RequestedModel

MAX_TEXT = 100_000


class Validation(NamedTuple):
    """A constraint to judge."""

    model: RequestedModel
    constraint: Constraint
    text: str | None


class ValidateRequestSerializer(ModelRequestSerializer, ConstraintFields):
    text = TextField(
        required=False, max_length=MAX_TEXT, help_text="A text to try the constraint on."
    )

    def check(self, values: Values) -> Validation:
        constraint = constraint_of(values, self.requested.files)
        if constraint is None:
            message = f"send one constraint: {', '.join(CONSTRAINTS)}."
            raise FieldError("missing_required_parameter", message, CONSTRAINTS[0])
        return Validation(self.requested, constraint, values["text"])


class ValidateView(AsyncAPIView):
    """An unusable constraint is an answer, not an error."""

    scope = Scope.INFERENCE

    async def post(self, request: APIRequest) -> Response:
        body = _with_model(request.data, request.auth)
        asked: Validation = await ValidateRequestSerializer.validate_request(body, request.auth)
        verdict = await judging.examine(asked.constraint, asked.model.files, asked.text)
        if isinstance(verdict.error, GrammarOverloadError | GrammarTimeoutError):
            verdict.result()  # raises: nothing is known about this constraint
        return Response(_answer(verdict))


def _with_model(body: Any, principal: Principal) -> Any:
    """The body, with the only model that its key may use when it names none."""
    if not isinstance(body, dict) or body.get("model") is not None:
        return body
    usable = [entry.id for entry in model_files.served_models() if principal.may_use(entry.id)]
    return {**body, "model": usable[0]} if len(usable) == 1 else body


def _answer(verdict: Verdict) -> dict[str, Any]:
    error = verdict.error
    answer: dict[str, Any] = {
        "valid": error is None,
        "error": error and error.message,
        "code": error and error.code,
        "line": error and error.line,
        "column": error and error.column,
        "pointer": error and error.pointer,
        "warnings": [asdict(finding) for finding in verdict.findings],
    }
    if verdict.match is not None:
        answer |= asdict(verdict.match)
    return answer
