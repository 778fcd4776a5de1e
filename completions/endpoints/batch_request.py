"""The body of POST /v1/batches."""

from typing import Self

from completions.endpoints.files import ExpiresAfterObject
from completions.exceptions import FieldError
from completions.models import OnInvalid
from completions.requests.fields.base import (
    BooleanField,
    ChoiceField,
    IntegerField,
    StorableObjectField,
    TextField,
)
from completions.requests.fields.lists import ListField
from completions.requests.fields.metadata import MetadataField
from completions.requests.fields.objects import StrictObject
from completions.requests.fields.window import OnLateField, WindowField
from completions.requests.preparation import ROUTES

MAX_INLINE_REQUESTS = 10_000
ON_INVALID_HEADER = "X-On-Invalid"
MAX_PILOT_LINES = 1000


class BatchRequestObject(StrictObject[object]):
    """The body of POST /v1/batches."""

    input_file_id = TextField("Id of an uploaded file with one request per line.")
    requests = ListField(
        "Instead of a file: what its lines would be. `method` and `url` may be left out, and "
        "`custom_id` is then `request-1` and so on.",
        child=StorableObjectField(),
        max_length=MAX_INLINE_REQUESTS,
        not_empty=True,
    )
    endpoint = ChoiceField("The route of all requests.", choices=list(ROUTES), required=True)
    completion_window: WindowField[str] = WindowField(
        "Minutes, hours or days, 1m to 7d; lines that are not done by then end with batch_expired.",
        default="24h",
    )
    on_late = OnLateField()
    dry_run = BooleanField(
        "Validate the file and answer with a forecast of tokens, cost and time; run only the "
        "lines of a pilot."
    )
    pilot = IntegerField(
        "Lines, drawn at random, that run first and narrow the forecast. After a dry run, "
        "POST /v1/batches/{id}/start runs the others.",
        min_value=1,
        max_value=MAX_PILOT_LINES,
    )
    receipts = BooleanField(
        "Each answered line has a receipt: hashes of weights, tokenizer, grammar and prompt, the "
        "seed, the engine's build and the token ids. `manage.py verify` and `replay` check it."
    )
    close = BooleanField(
        "The default of the field `close` of lines: constrained answers are whole texts of their "
        "constraint also where max_tokens ends them."
    )
    metadata = MetadataField("Up to 16 strings that the batch object repeats.")
    on_invalid = ChoiceField(
        "What a line with a refused body does: `skip` sends its error to the error file and runs "
        "the other lines, `fail` fails the batch before any line runs. Also as the header "
        f"`{ON_INVALID_HEADER}`. Default skip.",
        choices=OnInvalid.values,
    )
    output_expires_after = ExpiresAfterObject(
        "When the output and error files are deleted; default 30 days."
    )

    def check(self, values: Self) -> Self:
        if (values.input_file_id is None) == (values.requests is None):
            message = "send input_file_id, the id of an uploaded file, or requests, not both."
            is_missing = values.requests is None
            code = "missing_required_parameter" if is_missing else "invalid_value"
            raise FieldError(message, "input_file_id", code=code)
        return values
