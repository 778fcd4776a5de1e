"""Strict fields: they never convert JSON types, and every error names its place in the body."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Literal, Self, TypedDict, TypeVar, Unpack, overload

import orjson

from completions.catalog.model_files import ModelFiles
from completions.contract.sampling import Range
from completions.exceptions import FieldError
from completions.requests.context import Context

T = TypeVar("T")
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


def name_type(value: object) -> str:
    """Return the JSON type of a value, for messages."""
    return _JSON_TYPES.get(type(value), "null")


def expect(value: object, expected: type[T], name: str, path: str = "") -> T:
    """Return `value` if it has exactly this type. Raises FieldError."""
    if type(value) is not expected:
        raise FieldError(f"must be {name}, not {name_type(value)}.", path, code="invalid_type")
    return value


def get_files(context: Context | None) -> ModelFiles:
    """Return the files of the requested model, for a field that only bodies with a model have."""
    assert context is not None
    return context.model.files


def format_number(number: float) -> str:
    """Return a number for a message. An integer may have thousands of digits."""
    text = str(number)
    return text if len(text) <= _SHOWN_DIGITS else f"{text[:_SHOWN_DIGITS]}..."


def check_number(value: object, range: Range[float], path: str = "") -> float:
    """Return the value as a float if it is a finite number in `range`. Raises FieldError."""
    if type(value) is not float and type(value) is not int:
        raise FieldError(f"must be a number, not {name_type(value)}.", path, code="invalid_type")
    if value in range:
        return float(value)
    low, high = range.low, range.high
    if high is not None and high < value < float("inf"):
        message = f"must be at most {high:g}, not {format_number(value)}."
        raise FieldError(message, path, code="decimal_above_max_value")
    if low is not None and float("-inf") < value <= low:
        bound = f"above {low:g}" if range.excludes_low else f"at least {low:g}"
        raise FieldError(
            f"must be {bound}, not {format_number(value)}.", path, code="decimal_below_min_value"
        )
    raise FieldError("must be a finite number.", path)


def read_each(items: Iterable[object], read: Callable[[Any], T]) -> list[T]:
    """Apply `read` to every item. A FieldError names the item."""
    values = []
    for index, item in enumerate(items):
        try:
            values.append(read(item))
        except FieldError as error:
            error.inside(f"[{index}]")
            raise
    return values


def make_bounds(**keywords: object) -> dict[str, object]:
    """Return the keywords of a JSON Schema that have a value."""
    return {name: value for name, value in keywords.items() if value is not None}


def make_nullable(schema: dict[str, Any]) -> dict[str, object]:
    return {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]}


class Field(Generic[T]):
    """A value of a body, of type T once it is read. A field that is not `required` may be absent or
    null; both mean its default.

    A body's class declares its fields. Of the values that were read, an instance has each as an
    attribute of the field's name.
    """

    key = ""
    """The name of the field."""
    accepts: dict[str, object] = {}
    """What `to_schema` returns, where it is the same for all fields of a class."""

    def __init__(self, help: str = "", *, required: bool = False, default: object = None) -> None:
        self.help, self.required, self.default = help, required, default

    @overload
    def __get__(self, values: None, owner: type) -> Self: ...
    @overload
    def __get__(self, values: object, owner: type) -> T: ...
    def __get__(self, values: object, owner: type) -> object:
        """Return the field: values hide it in their own object."""
        return self

    def __set_name__(self, owner: type, name: str) -> None:
        self.key = name

    def read(self, data: object, context: Context | None = None) -> object:
        """Return the validated form of a JSON value that is not null. Raises FieldError.

        `context` is None in a body that names no model.
        """
        raise NotImplementedError

    def list_ignored(self, data: object) -> Iterator[str]:
        """Return paths of the parts of a valid value that have no effect, each from `.` or `[`
        on."""
        return iter(())

    def to_schema(self) -> dict[str, object]:
        """Return JSON Schema of the accepted values, without null."""
        return self.accepts

    def describe(self) -> dict[str, object]:
        """Return the schema with the documentation and the default. An optional field may be
        null."""
        schema = self.to_schema() if self.required else make_nullable(self.to_schema())
        default = {} if self.default is None else {"default": self.default}
        return {**schema, **default, "description": self.help}


class BooleanField(Field[T]):
    accepts = {"type": "boolean"}

    @overload
    def __init__(self: "BooleanField[bool]", help: str = "", *, default: bool) -> None: ...
    @overload
    def __init__(self: "BooleanField[bool | None]", help: str = "") -> None: ...
    def __init__(self, help: str = "", *, default: bool | None = None) -> None:
        super().__init__(help, default=default)

    def read(self, data: object, context: Context | None = None) -> bool:
        return expect(data, bool, "true or false")


class _Bounds(TypedDict, total=False):
    min_value: int | None
    max_value: int | None


class IntegerField(Field[T]):
    """An integer in `range`, which defaults to the field's range, or between the two bounds."""

    @overload
    def __init__(self: "IntegerField[int]", help: str = "", *, range: Range[int]) -> None: ...
    @overload
    def __init__(
        self: "IntegerField[int]", help: str = "", *, default: int, **bounds: Unpack[_Bounds]
    ) -> None: ...
    @overload
    def __init__(
        self: "IntegerField[int]",
        help: str = "",
        *,
        required: Literal[True],
        **bounds: Unpack[_Bounds],
    ) -> None: ...
    @overload
    def __init__(
        self: "IntegerField[int | None]", help: str = "", **bounds: Unpack[_Bounds]
    ) -> None: ...
    def __init__(
        self,
        help: str = "",
        *,
        range: Range[int] | None = None,
        min_value: int | None = None,
        max_value: int | None = None,
        required: bool = False,
        default: int | None = None,
    ) -> None:
        if range is not None:
            min_value, max_value, default = range.low, range.high, range.default
        super().__init__(help, required=required, default=default)
        self.min_value, self.max_value = min_value, max_value

    def to_schema(self) -> dict[str, object]:
        return {"type": "integer", **make_bounds(minimum=self.min_value, maximum=self.max_value)}

    def read(self, data: object, context: Context | None = None) -> int:
        data = expect(data, int, "an integer")
        if self.min_value is not None and data < self.min_value:
            message = f"must be at least {self.min_value}, not {format_number(data)}."
            raise FieldError(message, code="integer_below_min_value")
        if self.max_value is not None and data > self.max_value:
            message = f"must be at most {self.max_value}, not {format_number(data)}."
            raise FieldError(message, code="integer_above_max_value")
        return data


class NumberField(Field[float]):
    """A finite number in `range`, which defaults to the field's range. Integer literals are
    numbers."""

    def __init__(self, help: str = "", *, range: Range[float]) -> None:
        super().__init__(help, default=range.default)
        self.range = range

    def to_schema(self) -> dict[str, object]:
        low = "exclusiveMinimum" if self.range.excludes_low else "minimum"
        return {
            "type": "number",
            **make_bounds(**{low: self.range.low, "maximum": self.range.high}),
        }

    def read(self, data: object, context: Context | None = None) -> float:
        return check_number(data, self.range)


class _Form(TypedDict, total=False):
    max_length: int | None
    pattern: str


class TextField(Field[T]):
    """A string. Nothing is trimmed. `pattern` must match the whole string."""

    @overload
    def __init__(
        self: "TextField[str]", help: str = "", *, required: Literal[True], **form: Unpack[_Form]
    ) -> None: ...
    @overload
    def __init__(
        self: "TextField[str]", help: str = "", *, default: str, **form: Unpack[_Form]
    ) -> None: ...
    @overload
    def __init__(self: "TextField[str | None]", help: str = "", **form: Unpack[_Form]) -> None: ...
    def __init__(
        self,
        help: str = "",
        *,
        max_length: int | None = None,
        pattern: str = "",
        required: bool = False,
        default: str | None = None,
    ) -> None:
        super().__init__(help, required=required, default=default)
        self.max_length, self.pattern = max_length, re.compile(pattern) if pattern else None

    def to_schema(self) -> dict[str, object]:
        pattern = f"^(?:{self.pattern.pattern})$" if self.pattern else None
        return {"type": "string", **make_bounds(maxLength=self.max_length, pattern=pattern)}

    def read(self, data: object, context: Context | None = None) -> str:
        data = expect(data, str, "a string")
        if self.max_length is not None and len(data) > self.max_length:
            raise FieldError(f"has {len(data)} characters; it may have at most {self.max_length}.")
        if self.pattern is not None and not self.pattern.fullmatch(data):
            raise FieldError(f"must match the regular expression {self.pattern.pattern}")
        return data


class ChoiceField(Field[T]):
    @overload
    def __init__(
        self: "ChoiceField[str]",
        help: str = "",
        *,
        choices: Iterable[str],
        required: Literal[True],
    ) -> None: ...
    @overload
    def __init__(
        self: "ChoiceField[str]", help: str = "", *, choices: Iterable[str], default: str
    ) -> None: ...
    @overload
    def __init__(
        self: "ChoiceField[str | None]", help: str = "", *, choices: Iterable[str]
    ) -> None: ...
    def __init__(
        self,
        help: str = "",
        *,
        choices: Iterable[str],
        required: bool = False,
        default: str | None = None,
    ) -> None:
        super().__init__(help, required=required, default=default)
        self.choices = list(choices)

    def to_schema(self) -> dict[str, object]:
        return {"type": "string", "enum": self.choices}

    def read(self, data: object, context: Context | None = None) -> str:
        data = expect(data, str, "a string")
        if data not in self.choices:
            raise FieldError(f"must be one of: {', '.join(self.choices)}.")
        return data


class ObjectField(Field[T]):
    """An object with any content."""

    accepts = {"type": "object"}

    @overload
    def __init__(
        self: "ObjectField[dict[str, Any]]", help: str = "", *, required: Literal[True]
    ) -> None: ...
    @overload
    def __init__(self: "ObjectField[dict[str, object] | None]", help: str = "") -> None: ...
    def __init__(self, help: str = "", *, required: bool = False) -> None:
        super().__init__(help, required=required)

    def read(self, data: object, context: Context | None = None) -> dict[str, object]:
        return dict(expect(data, dict, "an object"))


class StorableObjectField(ObjectField[T]):
    """An object that orjson can store: integers of at most 64 bits, and bounded nesting."""

    def read(self, data: object, context: Context | None = None) -> dict[str, object]:
        value = super().read(data, context)
        try:
            orjson.dumps(value)
        except TypeError as error:
            raise FieldError(f"cannot be stored: {str(error).lower()}.") from error
        return value


class SchemaField(Field[Any]):
    """An object, or a string that holds one as JSON. An empty string means that none is given."""

    accepts = {"anyOf": [{"type": "object"}, {"type": "string"}]}

    def read(self, data: object, context: Context | None = None) -> object:
        if type(data) is not str:
            expect(data, dict, "an object, or a string that holds one")
        return data
