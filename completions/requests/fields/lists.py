"""Fields that are arrays, and values that may be given for each prompt."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Required, TypedDict, TypeGuard, Unpack, overload

from completions.exceptions import FieldError
from completions.requests.context import Context
from completions.requests.fields.base import (
    Field,
    T,
    expect,
    make_bounds,
    make_nullable,
    read_each,
)


class _Items(TypedDict, total=False):
    child: Required[Field[Any]]
    max_length: int | None
    not_empty: bool


class ListField(Field[T]):
    """An array of at most `max_length` items, each read by the `child` field."""

    @overload
    def __init__(
        self: "ListField[list[Any]]",
        help: str = "",
        *,
        required: Literal[True],
        **items: Unpack[_Items],
    ) -> None: ...
    @overload
    def __init__(
        self: "ListField[list[Any] | None]", help: str = "", **items: Unpack[_Items]
    ) -> None: ...
    def __init__(
        self,
        help: str = "",
        *,
        child: Field[Any],
        max_length: int | None = None,
        not_empty: bool = False,
        required: bool = False,
    ) -> None:
        super().__init__(help, required=required)
        self.child, self.max_length, self.not_empty = child, max_length, not_empty

    def to_schema(self) -> dict[str, object]:
        lengths = make_bounds(minItems=1 if self.not_empty else None, maxItems=self.max_length)
        return {"type": "array", "items": self.child.to_schema(), **lengths}

    def read(self, data: object, context: Context | None = None) -> list[Any]:
        data = expect(data, list, "an array")
        if self.not_empty and not data:
            raise FieldError("must have at least 1 element.", code="empty_array")
        check_count(data, self.max_length)
        return read_each(data, lambda item: self.child.read(item, context))

    def list_ignored(self, data: Any) -> Iterator[str]:
        for index, item in enumerate(data):
            yield from (f"[{index}]{path}" for path in self.child.list_ignored(item))


def check_count(items: list[object], maximum: int | None, what: str = "elements") -> None:
    """Raise FieldError when an array has more than `maximum` elements."""
    if maximum is not None and len(items) > maximum:
        message = f"has {len(items)} {what}; it may have at most {maximum}."
        raise FieldError(message, code="array_above_max_length")


@dataclass(frozen=True, slots=True)
class PerPrompt:
    """One value for all prompts, or, with `each`, one value per prompt."""

    values: Sequence[Any]
    each: bool

    def spread(self, prompts: int, name: str) -> Sequence[Any]:
        """Return one value per prompt. Raises FieldError when the numbers differ."""
        if not self.each:
            return [*self.values] * prompts
        if len(self.values) != prompts:
            message = f"has {len(self.values)} entries for {prompts} prompts; send one for each."
            raise FieldError(message, name)
        return self.values


class PerPromptField(Field[PerPrompt | None]):
    """A value of the `child` field, or an array with one per prompt; with `holes`, its items may be
    null. Read as PerPrompt."""

    def __init__(self, help: str = "", *, child: Field[Any], holes: bool = False) -> None:
        super().__init__(help)
        self.child, self.holes = child, holes

    def to_schema(self) -> dict[str, object]:
        one = self.child.to_schema()
        items = make_nullable(one) if self.holes else one
        return {"anyOf": [one, {"type": "array", "items": items}]}

    def is_array(self, data: object) -> TypeGuard[list[object]]:
        """Return whether `data` has a value for each prompt."""
        return type(data) is list

    def read(self, data: object, context: Context | None = None) -> PerPrompt:
        def read(item: object) -> object:
            return None if item is None and self.holes else self.child.read(item, context)

        if not self.is_array(data):
            return PerPrompt([self.child.read(data, context)], each=False)
        return PerPrompt(read_each(data, read), each=True)
