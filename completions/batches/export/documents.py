"""Answers as JSON documents, and their values as values of columns."""

import json
import math

from completions.batches.export.types import ListOf, Scalar, Struct, Type

_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**63 - 1


class UnreadableError(ValueError):
    """A text is not JSON, or has a value that no column can store."""


class MisfitError(ValueError):
    """A value does not have the type of its column."""


def read(text: str) -> object:
    """Parse the JSON document in a text. Raises UnreadableError, also for a number beyond a
    double's range and for half a surrogate pair."""
    try:
        document = json.loads(text, parse_float=_float, parse_constant=_float)
        if "\\u" in text:
            dump(document).encode()
    except (ValueError, RecursionError) as error:
        raise UnreadableError(str(error)) from error
    return document


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def fit_value(value: object, type: Type) -> object:
    """Convert a value to what its column stores: JSON as text, structs with all their fields.
    Raises MisfitError."""
    if value is None:
        return None
    match type:
        case Scalar():
            return _fit_scalar(value, type)
        case ListOf(item) if isinstance(value, list):
            return [fit_value(each, item) for each in value]
        case Struct(fields) if isinstance(value, dict):
            return {name: fit_value(value.get(name), each) for name, each in fields.items()}
    raise MisfitError


def _fit_scalar(value: object, type: Scalar) -> object:
    match type, value:
        case Scalar.JSON, _:
            return dump(value)
        case (Scalar.TEXT, str()) | (Scalar.BOOLEAN, bool()):
            return value
        case ((Scalar.INTEGER | Scalar.NUMBER), bool()):
            raise MisfitError
        case Scalar.INTEGER, int() if _MIN_INTEGER <= value <= _MAX_INTEGER:
            return value
        case Scalar.INTEGER, float() if value.is_integer() and abs(value) < 2**63:
            return int(value)
        case Scalar.NUMBER, (int() | float()):
            return _to_double(value)
    raise MisfitError


def _to_double(number: int | float) -> float:
    """Convert a number to a double. Raises MisfitError for an integer that would be rounded: it may
    be an identifier."""
    try:
        double = float(number)
    except OverflowError as error:
        raise MisfitError from error
    if double != number:
        raise MisfitError
    return double
