"""Strict request fields: JSON types are never converted, and every error names its place.

A field's name, range, default and documentation stand in its declaration; `null` means the default.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import orjson
from rest_framework import serializers

from completions.catalog.model_files import ModelFiles
from completions.errors import FieldError
from completions.requests.prompt import kind

SHOWN_NAME = 64
"""Characters of a client's own key that an error message repeats."""


def expect(value: Any, expected: type, name: str) -> None:
    if type(value) is not expected:
        raise FieldError("invalid_type", f"must be {name}, not {kind(value)}.")


class StrictField(serializers.Field[Any, Any, Any, Any]):
    """Mixed in before a field of DRF; only `to_internal_value` is used, on values not null."""

    def for_model(self, value: Any, model: ModelFiles) -> Any:
        """The value, checked against what depends on the model. Raises FieldError."""
        return value

    def to_schema(self) -> dict[str, Any]:
        """JSON Schema of what is accepted, null apart."""
        return {}


def bounds(**keywords: Any) -> dict[str, Any]:
    """Those that are set."""
    return {name: value for name, value in keywords.items() if value is not None}


class BooleanField(StrictField, serializers.BooleanField):
    def to_schema(self) -> dict[str, Any]:
        return {"type": "boolean"}

    def to_internal_value(self, data: Any) -> bool:
        expect(data, bool, "true or false")
        return bool(data)


class IntegerField(StrictField, serializers.IntegerField):
    """`min_value` and `max_value` are inclusive."""

    def to_schema(self) -> dict[str, Any]:
        return {"type": "integer", **bounds(minimum=self.min_value, maximum=self.max_value)}

    def to_internal_value(self, data: Any) -> int:
        expect(data, int, "an integer")
        if self.min_value is not None and data < self.min_value:
            raise FieldError("integer_below_min_value", f"must be at least {self.min_value}.")
        if self.max_value is not None and data > self.max_value:
            raise FieldError("integer_above_max_value", f"must be at most {self.max_value}.")
        return int(data)


class TopKField(IntegerField):
    """-1 and 0 switch the filter off, and so does more than any vocabulary has."""

    def to_internal_value(self, data: Any) -> int:
        top_k = super().to_internal_value(data)
        return top_k if 0 < top_k < 2**31 else -1


class NumberField(StrictField, serializers.FloatField):
    """A finite number, integer literals included. `min_value` is excluded where `above` is set."""

    def __init__(self, *, above: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.above = above

    def to_schema(self) -> dict[str, Any]:
        low = "exclusiveMinimum" if self.above else "minimum"
        return {"type": "number", **bounds(**{low: self.min_value, "maximum": self.max_value})}

    def to_internal_value(self, data: Any) -> float:
        return check_number(data, low=self.min_value, high=self.max_value, above=self.above)


def check_number(
    value: Any, *, low: float | None, high: float | None, above: bool = False, path: str = ""
) -> float:
    """A finite number in [low, high], or (low, high] where `above`. Raises FieldError."""
    if type(value) is not float and type(value) is not int:
        raise FieldError("invalid_type", f"must be a number, not {kind(value)}.", path)
    if type(value) is float and not math.isfinite(value):
        raise FieldError("invalid_value", "must be a finite number.", path)
    if low is not None and (value < low or (above and value == low)):
        bound = f"above {low}" if above else f"at least {low}"
        raise FieldError("decimal_below_min_value", f"must be {bound}.", path)
    if high is not None and value > high:
        raise FieldError("decimal_above_max_value", f"must be at most {high}.", path)
    return float(value)


class TextField(StrictField, serializers.CharField):
    """A string, kept as it is: nothing is trimmed. `pattern` must match the whole of it."""

    def __init__(self, *, pattern: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.pattern = re.compile(pattern) if pattern else None

    def to_schema(self) -> dict[str, Any]:
        pattern = f"^(?:{self.pattern.pattern})$" if self.pattern else None
        return {"type": "string", **bounds(maxLength=self.max_length, pattern=pattern)}

    def to_internal_value(self, data: Any) -> str:
        expect(data, str, "a string")
        if self.max_length is not None and len(data) > self.max_length:
            raise FieldError("invalid_value", f"may have at most {self.max_length} characters.")
        if self.pattern is not None and not self.pattern.fullmatch(data):
            raise FieldError("invalid_value", f"must match {self.pattern.pattern}")
        return str(data)


class ChoiceField(StrictField, serializers.ChoiceField):
    def to_schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.choices)}

    def to_internal_value(self, data: Any) -> str:
        expect(data, str, "a string")
        if data not in self.choices:
            known = ", ".join(map(str, self.choices))
            raise FieldError("invalid_value", f"must be one of: {known}.")
        return str(data)


class ObjectField(StrictField, serializers.DictField):
    """An object that is passed on as it is."""

    def to_schema(self) -> dict[str, Any]:
        return {"type": "object"}

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        expect(data, dict, "an object")
        return dict(data)


class KeptObjectField(ObjectField):
    """One that stays with the job, and so has to be written again: no integer of it has more than
    64 bits, and it is not nested deeper than orjson goes."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        value = super().to_internal_value(data)
        try:
            orjson.dumps(value)
        except TypeError as error:
            reason = str(error).lower()
            raise FieldError("invalid_value", f"cannot be passed on: {reason}.") from error
        return value


class SchemaField(StrictField, serializers.JSONField):
    """A JSON Schema: an object, or a string that holds one. An empty string counts as unset."""

    def to_schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "object"}, {"type": "string"}]}

    def to_internal_value(self, data: Any) -> Any:
        if type(data) is not str:
            expect(data, dict, "an object, or a string that holds one")
        return data


class ContentField(StrictField, serializers.JSONField):
    """A message's text: a string, or an array of {"type": "text", "text": ...} that are joined."""

    def to_schema(self) -> dict[str, Any]:
        part = {
            "type": "object",
            "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
            "required": ["type", "text"],
            "additionalProperties": False,
        }
        return {"anyOf": [{"type": "string"}, {"type": "array", "items": part}]}

    def to_internal_value(self, data: Any) -> str:
        if type(data) is str:
            return data
        expect(data, list, "a string or an array of text parts")
        return "".join(self._text(part, f"[{index}]") for index, part in enumerate(data))

    def _text(self, part: Any, path: str) -> str:
        if type(part) is dict and part.get("type", "text") != "text":
            message = "this model reads text parts only; leave out all others."
            raise FieldError("unsupported_content_type", message, f"{path}.type")
        if type(part) is dict and part.keys() == {"type", "text"} and type(part["text"]) is str:
            text: str = part["text"]
            return text
        raise FieldError("invalid_value", 'must be {"type": "text", "text": a string}.', path)


class ListField(StrictField, serializers.ListField):
    """An array whose items are all of one strict field, `min_length` to `max_length` of them."""

    child: StrictField

    def to_schema(self) -> dict[str, Any]:
        items = self.child.to_schema()
        lengths = bounds(minItems=self.min_length, maxItems=self.max_length)
        return {"type": "array", "items": items, **lengths}

    def to_internal_value(self, data: Any) -> list[Any]:
        expect(data, list, "an array")
        if self.min_length is not None and len(data) < self.min_length:
            raise FieldError("empty_array", f"must hold at least {self.min_length}.")
        if self.max_length is not None and len(data) > self.max_length:
            raise FieldError("array_above_max_length", f"may hold at most {self.max_length}.")
        values = []
        for index, item in enumerate(data):
            try:
                values.append(self.child.to_internal_value(item))
            except FieldError as error:
                error.inside(f"[{index}]")
                raise
        return values


@dataclass(frozen=True, slots=True)
class Declaration:
    """What an object's fields say before one of them has a value: of a hundred, few do."""

    places: Mapping[str, int]
    required: frozenset[str]
    defaults: Mapping[str, Any]

    @classmethod
    def of(cls, fields: Mapping[str, StrictField]) -> "Declaration":
        optional = [(name, field.default) for name, field in fields.items() if not field.required]
        return cls(
            places={name: place for place, name in enumerate(fields)},
            required=frozenset(name for name, field in fields.items() if field.required),
            defaults={name: None if it is serializers.empty else it for name, it in optional},
        )

    def names_in(self, data: Mapping[str, Any]) -> list[str]:
        """Those to be looked at, in the order of declaration."""
        present = [name for name in data if name in self.places]
        return sorted(self.required.union(present), key=self.places.__getitem__)


class StrictSerializer(StrictField, serializers.Serializer[Any]):
    """An object whose keys are all known, validated in declaration order up to the first error."""

    later_fields: Mapping[str, str] = {}
    """Names that are understood but not served, with what to do instead. Null and an empty array
    ask for nothing."""

    @cached_property
    def by_name(self) -> dict[str, StrictField]:
        return dict(self.fields.items())  # type: ignore[arg-type]

    @cached_property
    def declaration(self) -> Declaration:
        return Declaration.of(self.by_name)

    def to_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {name: described(field) for name, field in self.by_name.items()},
            "required": [name for name, field in self.by_name.items() if field.required],
            "additionalProperties": False,
        }

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        expect(data, dict, "an object")
        self._refuse_unknown(data)
        validated = dict(self.declaration.defaults)
        name = ""
        try:
            for name in self.declaration.names_in(data):
                field, value = self.by_name[name], data.get(name)
                if value is not None:
                    validated[name] = self.field_value(field, value, validated)
                elif field.required:
                    raise FieldError("missing_required_parameter", "this field is required.")
        except FieldError as error:
            error.inside(name)
            raise
        return self.check(validated)

    def field_value(self, field: StrictField, value: Any, validated: dict[str, Any]) -> Any:
        """One field's value; `validated` holds those declared before it."""
        return field.to_internal_value(value)

    def check(self, validated: dict[str, Any]) -> dict[str, Any]:
        """The rules between fields. Raises FieldError with the path from this object."""
        return validated

    def _refuse_unknown(self, data: dict[str, Any]) -> None:
        for name, value in data.items():
            if name in self.by_name or (name in self.later_fields and value in (None, [])):
                continue
            if name in self.later_fields:
                message = f"not supported here. {self.later_fields[name]}".rstrip()
                raise FieldError("unsupported_parameter", message, name)
            known = [*self.by_name, *self.later_fields]
            near = get_close_matches(name, known, 1) if len(name) <= SHOWN_NAME else []
            hint = f" Did you mean {near[0]}?" if near else ""
            raise FieldError(
                "unknown_parameter", f"there is no such parameter.{hint}", name[:SHOWN_NAME]
            )

    def run_validation(self, data: Any = serializers.empty) -> dict[str, Any]:
        """Raises APIError for the first error; never ValidationError."""
        try:
            return self.to_internal_value(data)
        except FieldError as error:
            raise error.api_error() from error


def described(field: StrictField) -> dict[str, Any]:
    """A field's schema with its documentation and default, and null where it may be absent."""
    schema = field.to_schema()
    if not field.required:
        schema = nullable(schema)
        if field.default not in (None, serializers.empty):
            schema["default"] = field.default
    return {**schema, "description": str(field.help_text or "")}


def nullable(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]}
