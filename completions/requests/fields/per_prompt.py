"""Fields that may have a value of their own for each prompt of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rest_framework import serializers

from completions.catalog.model_files import ModelFiles
from completions.errors import FieldError
from completions.requests.fields.base import StrictField, nullable, read_each


@dataclass(frozen=True, slots=True)
class PerPrompt:
    """One value for all prompts, or with `each` one value for each of them."""

    values: Sequence[Any]
    each: bool

    def spread(self, prompts: int, name: str) -> Sequence[Any]:
        """A value for each of so many prompts. Raises FieldError when the numbers differ."""
        if not self.each:
            return [*self.values] * prompts
        if len(self.values) != prompts:
            message = f"has {len(self.values)} entries for {prompts} prompts; send one for each."
            raise FieldError("invalid_value", message, name)
        return self.values


class PerPromptField(StrictField, serializers.ListField):
    """A value of the `child` field, or an array with one for each prompt. Read as PerPrompt.

    With `holes` entries of the array may be null.
    """

    child: StrictField

    def __init__(self, *, holes: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.holes = holes

    def to_schema(self) -> dict[str, Any]:
        one = self.child.to_schema()
        items = nullable(one) if self.holes else one
        return {"anyOf": [one, {"type": "array", "items": items}]}

    def is_array(self, data: Any) -> bool:
        """Whether `data` has a value for each prompt."""
        return type(data) is list

    def to_internal_value(self, data: Any) -> PerPrompt:
        def read(item: Any) -> Any:
            return None if item is None and self.holes else self.child.to_internal_value(item)

        if not self.is_array(data):
            return PerPrompt([self.child.to_internal_value(data)], each=False)
        return PerPrompt(read_each(data, read), each=True)

    def for_model(self, value: PerPrompt, model: ModelFiles) -> PerPrompt:
        def check(item: Any) -> Any:
            return None if item is None else self.child.for_model(item, model)

        if not value.each:
            return PerPrompt([check(value.values[0])], each=False)
        return PerPrompt(read_each(value.values, check), each=True)
