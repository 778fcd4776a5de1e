"""A JSON object read field by field. Errors have the JSON pointer of the field."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from completions.grammars.complaints import shown
from completions.grammars.exceptions import GrammarError, UnknownNodeError
from completions.grammars.structural_tag.lowering import Node

T = TypeVar("T")
_REQUIRED = object()


class JSONObject:
    """A JSON object whose fields are taken out; `end` refuses fields that are left."""

    def __init__(self, value: Any, pointer: str, readers: "Readers") -> None:
        self.pointer = pointer
        self._readers = readers
        if not isinstance(value, dict):
            raise self.error(f"must be an object, not {shown(value)}", "")
        self._fields = dict(value)
        self.type = value.get("type")

    def error(self, message: str, place: str) -> GrammarError:
        return GrammarError(message, pointer=f"{self.pointer}{place}")

    def has(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def take(self, name: str, default: Any = _REQUIRED) -> Any:
        """A field of any type. null counts as absent."""
        value = self._fields.pop(name, None)
        if value is None:
            value = default
        if value is _REQUIRED:
            raise self.error(f"needs the field {name}", "")
        return value

    def _typed(self, name: str, kind: type[T], what: str, default: Any) -> T:
        value: T = self.take(name, default)
        if value is not default and (
            not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
        ):
            raise self.error(f"{name} must be {what}, not {shown(value)}", f"/{name}")
        return value

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        return self._typed(name, str, "a string", default)

    def flag(self, name: str, default: bool = False) -> bool:
        return self._typed(name, bool, "true or false", default)

    def array(self, name: str, default: Any = _REQUIRED) -> list[Any]:
        return self._typed(name, list, "an array", default)

    def count(self, name: str, default: Any = _REQUIRED, low: int = 0) -> Any:
        found = self._typed(name, int, "an integer", default)
        if found is not None and found < low:
            raise self.error(f"{name} must be at least {low}, not {shown(found)}", f"/{name}")
        return found

    def texts(self, name: str, default: Any = _REQUIRED) -> tuple[str, ...]:
        """An array of strings that are not empty."""
        found = self.array(name, default)
        for index, item in enumerate(found):
            if not isinstance(item, str) or not item:
                message = f"must be a string that is not empty, not {shown(item)}"
                raise self.error(message, f"/{name}/{index}")
        return tuple(found)

    def tokens(self, name: str, default: Any = _REQUIRED) -> tuple[int | str, ...]:
        """An array of token ids and token texts."""
        found = self.array(name, default)
        return tuple(self.token(item, f"/{name}/{index}") for index, item in enumerate(found))

    def token(self, value: Any, place: str) -> int | str:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise self.error(f"must be a token's id or text, not {shown(value)}", place)
        return value

    def inside(self, value: Any, place: str) -> "JSONObject":
        return JSONObject(value, f"{self.pointer}{place}", self._readers)

    def objects(self, name: str) -> "list[JSONObject]":
        items = self.array(name)
        if not items:
            raise self.error(f"{name} must hold at least one", f"/{name}")
        return [self.inside(item, f"/{name}/{index}") for index, item in enumerate(items)]

    def node(self, name: str) -> Node:
        return self.inside(self.take(name), f"/{name}").read()

    def nodes(self, name: str) -> list[Node]:
        return [each.read() for each in self.objects(name)]

    def read(self) -> Node:
        """The node that this object describes."""
        kind = self.text("type")
        reader = self._readers.get(kind)
        if reader is None:
            known = ", ".join(sorted(self._readers))
            message = f"unknown node type {kind[:64]}; use one of: {known}"
            raise UnknownNodeError(message, pointer=f"{self.pointer}/type")
        found = reader(self)
        self.end()
        return found

    def end(self) -> None:
        if self._fields:
            name = next(iter(self._fields))
            kind = f"a node of type {self.type}" if isinstance(self.type, str) else "this object"
            raise self.error(f"{kind} has no field {name[:64]}", f"/{name[:64]}")


Readers = Mapping[str, Callable[[JSONObject], Node]]
