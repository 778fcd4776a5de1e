"""The pairs that a batch, a response or a conversation repeats to its client."""

from completions.exceptions import FieldError
from completions.requests.context import Context
from completions.requests.fields.base import Field, expect

_MAX_PAIRS, _MAX_KEY, _MAX_VALUE = 16, 64, 512
"""What OpenAI allows."""


class MetadataField(Field[dict[str, str] | None]):
    """Up to 16 pairs of texts, which SQL can hold."""

    accepts = {"type": "object", "additionalProperties": {"type": "string"}}

    def read(self, data: object, context: Context | None = None) -> dict[str, str]:
        pairs = expect(data, dict, "an object")
        if len(pairs) > _MAX_PAIRS:
            raise FieldError(f"has {len(pairs)} keys; it may have at most {_MAX_PAIRS}.")
        for name, value in pairs.items():
            if not 1 <= len(name) <= _MAX_KEY:
                raise FieldError(f"a key has {len(name)} characters; it may have 1-{_MAX_KEY}.")
            if len(expect(value, str, "a string", name)) > _MAX_VALUE:
                raise FieldError(f"has {len(value)} characters; at most {_MAX_VALUE}.", name)
            if "\0" in name + value:
                raise FieldError("must not contain U+0000.")
        return pairs
