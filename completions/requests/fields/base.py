"""Strict fields: they never convert JSON types, and every error names its place in the body.

A field's declaration holds its name, range, default and documentation. `null` means the default.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

import orjson
from rest_framework import serializers

from completions.catalog.model_files import ModelFiles
from completions.contract.sampling import Range
from completions.errors import FieldError

SHOWN_NAME = 64
"""How many characters of a client's own key an error message repeats."""
_SHOWN_DIGITS = 24
_JSON_TYPES = {
    bool: "a boolean",
    int: "an integer",
    float: "a fractional number",
    str: "a string",
    list: "an array",
    dict: "an object",
}


def kind(value: Any) -> str:
    """The JSON type of a value, for messages."""
    return _JSON_TYPES.get(type(value), "null")


def expect(value: Any, expected: type, name: str) -> None:
    """Raise FieldError unless `value` has exactly this type."""
    if type(value) is not expected:
        raise FieldError("invalid_type", f"must be {name}, not {kind(value)}.")


def shown(number: float) -> str:
    """A number for a message. An integer may have thousands of digits."""
    text = str(number)
    return text if len(text) <= _SHOWN_DIGITS else f"{text[:_SHOWN_DIGITS]}..."


def check_number(value: Any, range: Range[float], path: str = "") -> float:
    """The value as a float if it is a finite number in `range`. Raises FieldError."""
    if type(value) is not float and type(value) is not int:
        raise FieldError("invalid_type", f"must be a number, not {kind(value)}.", path)
    if value in range:
        return float(value)
    low, high = range.low, range.high
    if high is not None and high < value < float("inf"):
        message = f"must be at most {high:g}, not {shown(value)}."
        raise FieldError("decimal_above_max_value", message, path)
    if low is not None and float("-inf") < value <= low:
        bound = f"above {low:g}" if range.excludes_low else f"at least {low:g}"
        raise FieldError("decimal_below_min_value", f"must be {bound}, not {shown(value)}.", path)
    raise FieldError("invalid_value", "must be a finite number.", path)


def read_each(items: Iterable[Any], read: Callable[[Any], Any]) -> list[Any]:
    """`read` of every item. A FieldError names the item."""
    values = []
    for index, item in enumerate(items):
        try:
            values.append(read(item))
        except FieldError as error:
            error.inside(f"[{index}]")
            raise
    return values


def bounds(**keywords: Any) -> dict[str, Any]:
    """The keywords of a JSON Schema that have a value."""
    return {name: value for name, value in keywords.items() if value is not None}


def nullable(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]}


class StrictField(serializers.Field[Any, Any, Any, Any]):
    """Stands before one of DRF's fields in a class's bases. Of DRF's methods only
    `to_internal_value` is called, never with null."""

    def for_model(self, value: Any, model: ModelFiles) -> Any:
        """The value after the checks that need the model. Raises FieldError."""
        return value

    def to_schema(self) -> dict[str, Any]:
        """JSON Schema of the accepted values, without null."""
        return {}


class BooleanField(StrictField, serializers.BooleanField):
    def to_schema(self) -> dict[str, Any]:
        return {"type": "boolean"}

    def to_internal_value(self, data: Any) -> bool:
        expect(data, bool, "true or false")
        return bool(data)


class IntegerField(StrictField, serializers.IntegerField):
    """`min_value` and `max_value` are inclusive. `range` sets both and the default."""

    def __init__(self, *, range: Range[int] | None = None, **options: Any) -> None:
        if range is not None:
            options = {
                "default": range.default, "min_value": range.low, "max_value": range.high, **options
            }  # fmt: skip
        super().__init__(**options)

    def to_schema(self) -> dict[str, Any]:
        return {"type": "integer", **bounds(minimum=self.min_value, maximum=self.max_value)}

    def to_internal_value(self, data: Any) -> int:
        expect(data, int, "an integer")
        if self.min_value is not None and data < self.min_value:
            message = f"must be at least {self.min_value}, not {shown(data)}."
            raise FieldError("integer_below_min_value", message)
        if self.max_value is not None and data > self.max_value:
            message = f"must be at most {self.max_value}, not {shown(data)}."
            raise FieldError("integer_above_max_value", message)
        return int(data)


class NumberField(StrictField, serializers.FloatField):
    """A finite number in `range`, whose default is the field's. Integer literals are numbers."""

    def __init__(self, *, range: Range[float], **options: Any) -> None:
        super().__init__(default=range.default, **options)
        self.range = range

    def to_schema(self) -> dict[str, Any]:
        low = "exclusiveMinimum" if self.range.excludes_low else "minimum"
        return {"type": "number", **bounds(**{low: self.range.low, "maximum": self.range.high})}

    def to_internal_value(self, data: Any) -> float:
        return check_number(data, self.range)


class TextField(StrictField, serializers.CharField):
    """A string. Nothing is trimmed. `pattern` must match the whole string."""

    def __init__(self, *, pattern: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.pattern = re.compile(pattern) if pattern else None

    def to_schema(self) -> dict[str, Any]:
        pattern = f"^(?:{self.pattern.pattern})$" if self.pattern else None
        return {"type": "string", **bounds(maxLength=self.max_length, pattern=pattern)}

    def to_internal_value(self, data: Any) -> str:
        expect(data, str, "a string")
        if self.max_length is not None and len(data) > self.max_length:
            message = f"has {len(data)} characters; it may have at most {self.max_length}."
            raise FieldError("invalid_value", message)
        if self.pattern is not None and not self.pattern.fullmatch(data):
            message = f"must match the regular expression {self.pattern.pattern}"
            raise FieldError("invalid_value", message)
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
    """An object of any content."""

    def to_schema(self) -> dict[str, Any]:
        return {"type": "object"}

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        expect(data, dict, "an object")
        return dict(data)


class StorableObjectField(ObjectField):
    """An object that the job keeps, so orjson must be able to write it: no integer has more than
    64 bits, and nesting is not too deep."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        value = super().to_internal_value(data)
        try:
            orjson.dumps(value)
        except TypeError as error:
            raise FieldError("invalid_value", f"cannot be stored: {str(error).lower()}.") from error
        return value


class SchemaField(StrictField, serializers.JSONField):
    """An object, or a string that holds one as JSON. An empty string means that none is given."""

    def to_schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "object"}, {"type": "string"}]}

    def to_internal_value(self, data: Any) -> Any:
        if type(data) is not str:
            expect(data, dict, "an object, or a string that holds one")
        return data


class ListField(StrictField, serializers.ListField):
    """An array of `min_length` to `max_length` items, which are all of the `child` field."""

    child: StrictField

    def to_schema(self) -> dict[str, Any]:
        items = self.child.to_schema()
        lengths = bounds(minItems=self.min_length, maxItems=self.max_length)
        return {"type": "array", "items": items, **lengths}

    def to_internal_value(self, data: Any) -> list[Any]:
        expect(data, list, "an array")
        if self.min_length is not None and len(data) < self.min_length:
            raise FieldError("empty_array", f"must have at least {self.min_length} element.")
        check_count(data, self.max_length)
        return read_each(data, self.child.to_internal_value)


def check_count(items: list[Any], most: int | None, what: str = "elements") -> None:
    """Raise FieldError when an array has more than `most` elements."""
    if most is not None and len(items) > most:
        message = f"has {len(items)} {what}; it may have at most {most}."
        raise FieldError("array_above_max_length", message)
