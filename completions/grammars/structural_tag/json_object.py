"""A JSON object read field by field, with the pointer of every fault."""

from collections.abc import Callable, Mapping
from typing import Any

from completions.grammars.exceptions import GrammarError
from completions.grammars.structural_tag.nodes import Node

_REQUIRED = object()


class JSONObject:
    """A JSON object whose fields are taken out; what is left over in the end is a mistake."""

    def __init__(self, value: Any, pointer: str, readers: "Readers") -> None:
        """`readers` read the nodes of the tree, by type."""
        self.pointer = pointer
        self.readers = readers
        if not isinstance(value, dict):
            raise self.error("must be an object", "")
        self._fields = dict(value)
        self._type = value.get("type")

    def error(self, message: str, place: str) -> GrammarError:
        return GrammarError(message, pointer=f"{self.pointer}{place}")

    def has(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def take(self, name: str, default: Any = _REQUIRED) -> Any:
        value = self._fields.pop(name, None)
        if value is None:
            value = default
        if value is _REQUIRED:
            raise self.error(f"needs the field {name}", "")
        return value

    def _typed(self, name: str, kinds: type | tuple[type, ...], what: str, default: Any) -> Any:
        value = self.take(name, default)
        if value is not default and (
            not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool)
        ):
            raise self.error(f"{name} must be {what}", f"/{name}")
        return value

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        found: str = self._typed(name, str, "a string", default)
        return found

    def flag(self, name: str, default: bool = False) -> bool:
        found: bool = self._typed(name, bool, "true or false", default)
        return found

    def count(self, name: str, default: Any = _REQUIRED, low: int = 0) -> Any:
        found = self._typed(name, int, "an integer", default)
        if found is not None and found < low:
            raise self.error(f"{name} must be at least {low}", f"/{name}")
        return found

    def array(self, name: str, default: Any = _REQUIRED) -> list[Any]:
        found: list[Any] = self._typed(name, list, "an array", default)
        return found

    def texts(self, name: str, default: Any = _REQUIRED) -> tuple[str, ...]:
        """An array of strings that are not empty."""
        found = self.array(name, default)
        for index, item in enumerate(found):
            if not isinstance(item, str) or not item:
                raise self.error("must be a string that is not empty", f"/{name}/{index}")
        return tuple(found)

    def tokens(self, name: str, default: Any = _REQUIRED) -> tuple[int | str, ...]:
        """An array of token ids and token texts."""
        found = self.array(name, default)
        for index, item in enumerate(found):
            self._check_token(item, f"/{name}/{index}")
        return tuple(found)

    def token(self, name: str) -> int | str:
        found: int | str = self.take(name)
        self._check_token(found, f"/{name}")
        return found

    def _check_token(self, value: Any, place: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise self.error("must be a token's id or text", place)

    def object(self, name: str) -> "JSONObject":
        return JSONObject(self.take(name), f"{self.pointer}/{name}", self.readers)

    def objects(self, name: str) -> "list[JSONObject]":
        items = self.array(name)
        if not items:
            raise self.error(f"{name} must hold at least one", f"/{name}")
        return [
            JSONObject(item, f"{self.pointer}/{name}/{index}", self.readers)
            for index, item in enumerate(items)
        ]

    def end(self) -> None:
        if self._fields:
            name = next(iter(self._fields))
            kind = f"a node of type {self._type}" if isinstance(self._type, str) else "this object"
            raise self.error(f"{kind} has no field {name[:64]}", f"/{name[:64]}")


Readers = Mapping[str, Callable[[JSONObject], Node]]
