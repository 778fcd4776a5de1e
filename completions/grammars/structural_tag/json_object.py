"""A JSON object read field by field. Errors have the JSON pointer of the field."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from completions.grammars.exceptions import GrammarError, UnknownNodeError
from completions.grammars.messages import format_value
from completions.grammars.structural_tag.lowering import Node

T = TypeVar("T")
_REQUIRED = object()


class JSONObject:
    """A JSON object whose fields are taken out; `end` refuses fields that are left."""

    def __init__(self, value: object, pointer: str, readers: "Readers") -> None:
        self.pointer = pointer
        self._readers = readers
        if not isinstance(value, dict):
            raise self.make_error(f"must be an object, not {format_value(value)}", "")
        self._fields = dict(value)
        self.type = value.get("type")

    def make_error(self, message: str, path: str) -> GrammarError:
        return GrammarError(message, pointer=f"{self.pointer}{path}")

    def has(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def take(self, name: str, default: object = _REQUIRED) -> Any:
        """Return a field of any type. null counts as absent."""
        value = self._fields.pop(name, None)
        if value is None:
            value = default
        if value is _REQUIRED:
            raise self.make_error(f"needs the field {name}", "")
        return value

    def _take_typed(self, name: str, kind: type[T], what: str, default: object) -> T:
        value: T = self.take(name, default)
        if value is not default and (
            not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
        ):
            raise self.make_error(f"{name} must be {what}, not {format_value(value)}", f"/{name}")
        return value

    def take_text(self, name: str, default: object = _REQUIRED) -> str:
        return self._take_typed(name, str, "a string", default)

    def take_flag(self, name: str, default: bool = False) -> bool:
        return self._take_typed(name, bool, "true or false", default)

    def take_array(self, name: str, default: object = _REQUIRED) -> list[Any]:
        return self._take_typed(name, list, "an array", default)

    def take_count(self, name: str, default: object = _REQUIRED, low: int = 0) -> Any:
        count = self._take_typed(name, int, "an integer", default)
        if count is not None and count < low:
            raise self.make_error(
                f"{name} must be at least {low}, not {format_value(count)}", f"/{name}"
            )
        return count

    def take_texts(self, name: str, default: object = _REQUIRED) -> tuple[str, ...]:
        """Return an array of strings that are not empty."""
        values = self.take_array(name, default)
        for index, item in enumerate(values):
            if not isinstance(item, str) or not item:
                message = f"must be a string that is not empty, not {format_value(item)}"
                raise self.make_error(message, f"/{name}/{index}")
        return tuple(values)

    def take_tokens(self, name: str, default: object = _REQUIRED) -> tuple[int | str, ...]:
        """Return an array of token ids and token texts."""
        values = self.take_array(name, default)
        return tuple(
            self.check_token(item, f"/{name}/{index}") for index, item in enumerate(values)
        )

    def check_token(self, value: object, path: str) -> int | str:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise self.make_error(f"must be a token's id or text, not {format_value(value)}", path)
        return value

    def open_object(self, value: object, path: str) -> "JSONObject":
        return JSONObject(value, f"{self.pointer}{path}", self._readers)

    def take_objects(self, name: str) -> "list[JSONObject]":
        items = self.take_array(name)
        if not items:
            raise self.make_error(f"{name} must hold at least one", f"/{name}")
        return [self.open_object(item, f"/{name}/{index}") for index, item in enumerate(items)]

    def take_node(self, name: str) -> Node:
        return self.open_object(self.take(name), f"/{name}").read()

    def take_nodes(self, name: str) -> list[Node]:
        return [each.read() for each in self.take_objects(name)]

    def read(self) -> Node:
        """Return the node that this object describes."""
        kind = self.take_text("type")
        reader = self._readers.get(kind)
        if reader is None:
            types = ", ".join(sorted(self._readers))
            message = f"unknown node type {kind[:64]}; use one of: {types}"
            raise UnknownNodeError(message, pointer=f"{self.pointer}/type")
        node = reader(self)
        self.end()
        return node

    def end(self) -> None:
        if self._fields:
            name = next(iter(self._fields))
            kind = f"a node of type {self.type}" if isinstance(self.type, str) else "this object"
            raise self.make_error(f"{kind} has no field {name[:64]}", f"/{name[:64]}")


Readers = Mapping[str, Callable[[JSONObject], Node]]
