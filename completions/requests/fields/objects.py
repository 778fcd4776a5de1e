"""Strict objects: every key is known, and validation ends at the first error."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

from completions.exceptions import FieldError
from completions.requests.context import Context
from completions.requests.fields.base import SHOWN_NAME, Field, expect

_T = TypeVar("_T")
Values = Mapping[str, Any]
"""The value of every field of an object, by name: the default where none is given."""


def make_settings(cls: type[_T], values: Values, **others: Any) -> _T:
    """Return an instance of a slotted dataclass: its fields are `others`, and the `values` of the
    same names."""
    names: Iterable[str] = cls.__slots__  # type: ignore[attr-defined] # unlike fields(), this is free
    return cls(**{name: values[name] for name in names if name not in others}, **others)


class StrictObject(Field):
    """An object with the fields that its class and the bases declare, read in that order."""

    fields: ClassVar[dict[str, Field]] = {}
    unsupported: Mapping[str, str] = {}
    """Field names of other systems, which may only be null or an empty array, and what to send
    instead."""
    _paths: ClassVar[Mapping[str, int]]
    _required: ClassVar[frozenset[str]]
    _defaults: ClassVar[Values]

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

    def read(self, data: Any, context: Context | None = None) -> Any:
        self.check_names(data)
        return self.check(self.read_values(data, context))

    def check_names(self, data: Any) -> None:
        """Raise FieldError unless `data` is an object whose fields are all known."""
        expect(data, dict, "an object")
        self._refuse_unknown(data)

    def read_values(self, data: dict[str, Any], context: Context | None) -> Values:
        """Return the value of each field. Raises FieldError at the first error."""
        # A body has few of the hundred fields, so only those are looked at.
        names = self._required.union(name for name in data if name in self._paths)
        values = dict(self._defaults)
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
        return values

    def check(self, values: Values) -> Any:
        """Return the object's value, once the rules between its fields are checked. Raises
        FieldError."""
        return values

    def validate(self, data: Any) -> Any:
        """Return the value of a whole body. Raises APIError."""
        try:
            return self.read(data)
        except FieldError as error:
            raise error.api_error() from error

    def _refuse_unknown(self, data: dict[str, Any]) -> None:
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


class OpenObject(StrictObject):
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

    def _refuse_unknown(self, data: dict[str, Any]) -> None:
        pass


def quote_key(name: str) -> str:
    """Return a client's own key as it can stand in a path of a header."""
    return quote(name[:SHOWN_NAME])
