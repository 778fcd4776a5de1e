"""POST /v1/grammars/validate: check a constraint, and whether a text matches it."""

from dataclasses import asdict
from typing import Self

from completions.catalog.model_files import ModelFiles
from completions.delivery import rate_limits
from completions.exceptions import FieldError
from completions.grammars import Caller, Constraint, ValidationResult
from completions.grammars.exceptions import GrammarOverloadError, GrammarTimeoutError
from completions.http.base import APIRequest, AsyncAPIView
from completions.http.bodies import JSONResponse
from completions.models import Scope
from completions.requests import validation
from completions.requests.context import Context
from completions.requests.fields.base import TextField
from completions.requests.fields.constraint import CONSTRAINTS, ConstraintFields, parse_constraint
from completions.requests.model import ModelRequestObject

MAX_TEXT = 100_000


class ValidateRequestObject(
    ModelRequestObject[tuple[Constraint, ModelFiles, str | None]], ConstraintFields
):
    text = TextField("A text to try the constraint on.", max_length=MAX_TEXT)

    def make(self, values: Self, context: Context) -> tuple[Constraint, ModelFiles, str | None]:
        constraint = parse_constraint(values, context.model.files)
        if constraint is None:
            message = f"send one constraint: {', '.join(CONSTRAINTS)}."
            raise FieldError(message, CONSTRAINTS[0], code="missing_required_parameter")
        return constraint, context.model.files, values.text


class ValidateView(AsyncAPIView):
    """Report on a constraint. An invalid one is a result, not an error."""

    scope = Scope.INFERENCE

    async def post(self, request: APIRequest) -> JSONResponse:
        self.headers.update(await rate_limits.count_request(request.process, request.auth))
        constraint, model, text = await ValidateRequestObject.validate_request(
            request.process.checks, request.data, request.auth
        )
        result = await validation.validate(
            request.process.validator, constraint, model, text, Caller(request.auth.organization_id)
        )
        if isinstance(result.error, GrammarOverloadError | GrammarTimeoutError):
            result.get_grammar()  # raises, because the check did not finish
        return JSONResponse(_make_answer(result))


def _make_answer(result: ValidationResult) -> dict[str, object]:
    error = result.error
    answer: dict[str, object] = {
        "valid": error is None,
        "error": error and error.message,
        "code": error and error.code,
        "line": error and error.line,
        "column": error and error.column,
        "pointer": error and error.pointer,
        "warnings": [asdict(diagnostic) for diagnostic in result.diagnostics],
    }
    if result.match is not None:
        answer |= asdict(result.match)
    return answer
