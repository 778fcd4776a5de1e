"""Strict objects: every key is known, and validation ends at the first error."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar, Self
from urllib.parse import quote

from completions.exceptions import FieldError
from completions.requests.context import Context
from completions.requests.fields.base import SHOWN_NAME, Field, T, expect


class StrictObject(Field[T]):
    """An object with the fields that its class and the bases declare, read in that order.

    An instance in the place of a field is a definition, and never changes. `read_values` makes
    another kind of instance, which has the values.
    """

    fields: ClassVar[dict[str, Field[Any]]] = {}
    unsupported: Mapping[str, str] = {}
    """Field names of other systems, which may only be null or an empty array, and what to send
    instead."""
    _paths: ClassVar[Mapping[str, int]]
    _required: ClassVar[frozenset[str]]
    _defaults: ClassVar[Mapping[str, object]]

    def __init_subclass__(cls) -> None:
        cls.fields = {}
        for base in cls.__bases__:
            cls.fields |= getattr(base, "fields", {})
        cls.fields |= {name: each for name, each in vars(cls).items() if isinstance(each, Field)}
        cls._paths = {name: position for position, name in enumerate(cls.fields)}
        cls._required = frozenset(name for name, each in cls.fields.items() if each.required)
        cls._defaults = {
            name: each.default for name, each in cls.fields.items() if not each.required
        }

    def to_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {name: field.describe() for name, field in self.fields.items()},
            "required": [name for name, field in self.fields.items() if field.required],
            "additionalProperties": False,
        }

    def read(self, data: object, context: Context | None = None) -> Any:
        return self.check(self.read_values(self.check_names(data), context))

    def check_names(self, data: object) -> dict[str, object]:
        """Return the object. Raises FieldError unless it is one whose fields are all known."""
        fields: dict[str, object] = expect(data, dict, "an object")
        self._refuse_unknown(fields)
        return fields

    def read_values(self, data: Mapping[str, object], context: Context | None) -> Self:
        """Return the value of every field, its default where none is given, as an attribute.
        Raises FieldError at the first error."""
        # A body has few of the hundred fields, so only those are looked at.
        names = self._required.union(name for name in data if name in self._paths)
        values: dict[str, object] = {}
        name = ""
        try:
            for name in sorted(names, key=self._paths.__getitem__):
                field, value = self.fields[name], data.get(name)
                if value is not None:
                    values[name] = field.read(value, context)
                elif field.required:
                    raise FieldError("this field is required.", code="missing_required_parameter")
        except FieldError as error:
            error.inside(name)
            raise
        return self.fill(values)

    @classmethod
    def fill(cls, values: Mapping[str, object]) -> Self:
        """Return values as `read_values` does, the default of every field that is absent."""
        result = cls.__new__(cls)
        result.__dict__ = {**cls._defaults, **values}
        return result

    def list_values(self) -> dict[str, Any]:
        """Return the values that were read, by the names of their fields."""
        return self.__dict__

    def has_any(self, group: "type[StrictObject[Any]]") -> bool:
        """Return whether any field of a group, a base of this class, has another value than its
        default."""
        values = self.__dict__
        return any(values[name] != default for name, default in group._defaults.items())

    def change(self, **values: object) -> Self:
        """Return the values that were read, with others for some fields."""
        result = type(self).__new__(type(self))
        result.__dict__ = {**self.__dict__, **values}
        return result

    def check(self, values: Self) -> Any:
        """Return the object's value, once the rules between its fields are checked. Raises
        FieldError."""
        return values

    def list_ignored(self, data: Any) -> Iterator[str]:
        for name, field in self.fields.items():
            if data.get(name) is not None:
                yield from (f".{name}{path}" for path in field.list_ignored(data[name]))

    def validate(self, data: object) -> Any:
        """Return the value of a whole body. Raises APIError."""
        try:
            return self.read(data)
        except FieldError as error:
            raise error.api_error() from error

    def _refuse_unknown(self, data: Mapping[str, object]) -> None:
        for name, value in data.items():
            if name in self.fields or (name in self.unsupported and value in (None, [])):
                continue
            if name in self.unsupported:
                message = f"not supported here. {self.unsupported[name]}".rstrip()
                raise FieldError(message, name, code="unsupported_parameter")
            names = [*self.fields, *self.unsupported]
            near = get_close_matches(name, names, 1) if len(name) <= SHOWN_NAME else []
            hint = f" Did you mean {near[0]}?" if near else ""
            message = f"there is no such parameter.{hint}"
            raise FieldError(message, name[:SHOWN_NAME], code="unknown_parameter")


class OpenObject(StrictObject[T]):
    """An object that may have any other keys. They have no effect."""

    def to_schema(self) -> dict[str, Any]:
        return {**super().to_schema(), "additionalProperties": True}

    def list_ignored(self, data: Any) -> Iterator[str]:
        for name, value in data.items():
            if value in (None, [], {}):
                continue
            if name in self.fields:
                yield from (f".{name}{path}" for path in self.fields[name].list_ignored(value))
            else:
                yield f".{quote_key(name)}"

    def _refuse_unknown(self, data: Mapping[str, object]) -> None:
        pass


def quote_key(name: str) -> str:
    """Return a client's own key as it can stand in a path of a header."""
    return quote(name[:SHOWN_NAME])
