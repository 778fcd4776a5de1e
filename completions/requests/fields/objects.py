"""Strict objects: every key is known, and validation ends at the first error."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cached_property
from typing import Any, TypeVar

from rest_framework import serializers

from completions.errors import FieldError
from completions.requests.fields.base import SHOWN_NAME, StrictField, expect, nullable

_T = TypeVar("_T")
Values = Mapping[str, Any]
"""The value of every field of an object, by name: the default where none is given."""


def settings_from(cls: type[_T], values: Values, **others: Any) -> _T:
    """A dataclass whose fields are `others`, and the `values` of the same names."""
    taken = {each.name: values[each.name] for each in fields(cls) if each.name not in others}  # type: ignore[arg-type]
    return cls(**taken, **others)


@dataclass(frozen=True, slots=True)
class _Declaration:
    """What validation needs of an object's fields. A body gives few of the hundred fields, so only
    those are looked at."""

    places: Mapping[str, int]
    required: frozenset[str]
    defaults: Values

    @classmethod
    def of(cls, by_name: Mapping[str, StrictField]) -> "_Declaration":
        optional = [(name, field.default) for name, field in by_name.items() if not field.required]
        return cls(
            places={name: place for place, name in enumerate(by_name)},
            required=frozenset(name for name, field in by_name.items() if field.required),
            defaults={name: None if it is serializers.empty else it for name, it in optional},
        )

    def names_in(self, data: Mapping[str, Any]) -> list[str]:
        """The names to read, in the order of declaration."""
        present = [name for name in data if name in self.places]
        return sorted(self.required.union(present), key=self.places.__getitem__)


class StrictSerializer(StrictField, serializers.Serializer[Any]):
    """An object whose fields are read in the order of declaration."""

    unsupported: Mapping[str, str] = {}
    """Known names that this server does not support, and what to send instead. They may be null or
    an empty array."""

    @cached_property
    def by_name(self) -> dict[str, StrictField]:
        return dict(self.fields.items())  # type: ignore[arg-type]

    @cached_property
    def declaration(self) -> _Declaration:
        return _Declaration.of(self.by_name)

    def to_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {name: described(field) for name, field in self.by_name.items()},
            "required": [name for name, field in self.by_name.items() if field.required],
            "additionalProperties": False,
        }

    def to_internal_value(self, data: Any) -> Any:
        expect(data, dict, "an object")
        self._refuse_unknown(data)
        values = dict(self.declaration.defaults)
        name = ""
        try:
            for name in self.declaration.names_in(data):
                field, value = self.by_name[name], data.get(name)
                if value is not None:
                    values[name] = self.field_value(field, value)
                elif field.required:
                    raise FieldError("missing_required_parameter", "this field is required.")
        except FieldError as error:
            error.inside(name)
            raise
        return self.check(values)

    def field_value(self, field: StrictField, value: Any) -> Any:
        """The value of one field. Raises FieldError."""
        return field.to_internal_value(value)

    def check(self, values: Values) -> Any:
        """The object as a value, after the rules between its fields. Raises FieldError with the
        path from this object."""
        return values

    def _refuse_unknown(self, data: dict[str, Any]) -> None:
        for name, value in data.items():
            if name in self.by_name or (name in self.unsupported and value in (None, [])):
                continue
            if name in self.unsupported:
                message = f"not supported here. {self.unsupported[name]}".rstrip()
                raise FieldError("unsupported_parameter", message, name)
            known = [*self.by_name, *self.unsupported]
            near = get_close_matches(name, known, 1) if len(name) <= SHOWN_NAME else []
            hint = f" Did you mean {near[0]}?" if near else ""
            raise FieldError(
                "unknown_parameter", f"there is no such parameter.{hint}", name[:SHOWN_NAME]
            )

    def run_validation(self, data: Any = serializers.empty) -> Any:
        """Raises APIError for the first error, never DRF's ValidationError."""
        try:
            return self.to_internal_value(data)
        except FieldError as error:
            raise error.api_error() from error


def described(field: StrictField) -> dict[str, Any]:
    """A field's schema with its documentation and default. An optional field may be null."""
    schema = field.to_schema()
    if not field.required:
        schema = nullable(schema)
        if field.default not in (None, serializers.empty):
            schema["default"] = field.default
    return {**schema, "description": str(field.help_text or "")}
