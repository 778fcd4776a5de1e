"""Objects of several types. One of their fields names the type."""

from collections.abc import Iterator, Mapping
from typing import Any

from completions.exceptions import FieldError
from completions.requests.context import Context
from completions.requests.fields.base import SHOWN_NAME, Field, expect
from completions.requests.fields.objects import StrictObject


class TypedObjectField(Field[Any]):
    """An object whose field `key` says which of `readers` reads it."""

    def __init__(
        self,
        readers: Mapping[str, StrictObject[Any]],
        refusal: str,
        *,
        key: str = "type",
        default: str | None = None,
        code: str = "unsupported_value",
    ) -> None:
        """`refusal` is the message about another type, with places for it and for `readers`. An
        object without the field has the type `default`, or is refused."""
        super().__init__()
        self._readers, self._refusal, self._code = readers, refusal, code
        self._key, self._default = key, default

    def to_schema(self) -> dict[str, object]:
        return {"anyOf": [self._describe(kind, each) for kind, each in self._readers.items()]}

    def read(self, data: object, context: Context | None = None) -> object:
        data = expect(data, dict, "an object")
        kind = data.get(self._key) or self._default
        if kind is None:
            message = "this field is required."
            raise FieldError(message, self._key, code="missing_required_parameter")
        if type(kind) is not str or kind not in self._readers:
            message = self._refusal.format(str(kind)[:SHOWN_NAME], ", ".join(self._readers))
            raise FieldError(message, self._key, code=self._code)
        return self._readers[kind].read(data, context)

    def list_ignored(self, data: Any) -> Iterator[str]:
        rest = {name: value for name, value in data.items() if name != self._key}
        kind = data.get(self._key) or self._default
        return self._readers[str(kind)].list_ignored(rest)

    def _describe(self, kind: str, reader: StrictObject[Any]) -> dict[str, object]:
        schema = reader.to_schema()
        required = {*schema["required"], *(() if self._default else (self._key,))}
        properties = {**schema["properties"], self._key: {"const": kind}}
        return {**schema, "properties": properties, "required": sorted(required)}
