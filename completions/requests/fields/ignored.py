"""Fields of other APIs that Quire does not have: some are ignored, and the response's header
`x-ignored-params` names them; the others are refused with what to send instead.
"""

from collections.abc import Iterator
from typing import Any

from completions.requests.context import Context
from completions.requests.fields.base import BooleanField, Field, ObjectField, TextField
from completions.requests.fields.objects import StrictObject


class UnusedField(Field[object]):
    """A field that is checked as another one is, and has no effect."""

    def __init__(self, field: Field[Any]) -> None:
        super().__init__(field.help)
        self._field = field

    def to_schema(self) -> dict[str, object]:
        return self._field.to_schema()

    def read(self, data: object, context: Context | None = None) -> object:
        return self._field.read(data, context)

    def list_ignored(self, data: object) -> Iterator[str]:
        yield ""


class IgnoredFields(StrictObject[object]):
    """Fields that are checked and then have no effect; each route adds its own, `ignored_too`."""

    user = TextField("The client's id of its own user; no effect.", max_length=256)
    metadata = ObjectField("No effect.")
    store = BooleanField("No effect.")
    safety_identifier = TextField("No effect.", max_length=256)
    prompt_cache_key = TextField("No effect; prefixes are always cached.", max_length=256)
    prompt_cache_retention = TextField("No effect.", max_length=64)
    guided_decoding_backend = TextField("No effect; llguidance is the only one.", max_length=256)
    guided_whitespace_pattern = TextField("No effect; json_whitespace chooses.", max_length=256)


FOREIGN_NAMES = {
    "sampling_params": "Send its fields at the top level of the body.",
    "text": "Use prompt.",
    "max_new_tokens": "Use max_tokens.",
    "return_tokens_as_token_ids": "Use return_token_ids.",
    "extra_key": "Use cache_salt.",
}
"""Names that SGLang's native route and vLLM have: they are refused with this hint."""
