"""Fields of one text or several, and of values that may differ from prompt to prompt."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rest_framework import serializers

from completions.catalog.model_files import ModelFiles
from completions.contract.stop_regex import automaton
from completions.contract.stop_regex.syntax import RegexError
from completions.errors import FieldError
from completions.requests.fields import StrictField, expect, nullable
from completions.requests.prompt import kind


class TextsField(StrictField, serializers.ListField):
    """One string or an array of them, always read as an array."""

    max_texts: int
    max_characters: int

    def to_schema(self) -> dict[str, Any]:
        text = {"type": "string", "minLength": 1, "maxLength": self.max_characters}
        return {"anyOf": [text, {"type": "array", "items": text, "maxItems": self.max_texts}]}

    def to_internal_value(self, data: Any) -> list[str]:
        if type(data) is str:
            return self.together([self.text(data, "")])
        expect(data, list, "a string or an array of strings")
        if len(data) > self.max_texts:
            message = f"may hold at most {self.max_texts} strings."
            raise FieldError("array_above_max_length", message)
        return self.together([self.text(item, f"[{index}]") for index, item in enumerate(data)])

    def text(self, value: Any, path: str) -> str:
        if type(value) is not str:
            raise FieldError("invalid_type", f"must be a string, not {kind(value)}.", path)
        if not 1 <= len(value) <= self.max_characters:
            message = f"must have 1-{self.max_characters} characters."
            raise FieldError("invalid_value", message, path)
        return value

    def together(self, texts: list[str]) -> list[str]:
        """What holds for all of them. Raises FieldError."""
        return texts


class StopField(TextsField):
    """Stop strings."""

    max_texts = 16
    max_characters = 256


class StopRegexField(TextsField):
    """Stop regexes, each judged here: a bad one never reaches a worker."""

    max_texts = automaton.MAX_PATTERNS
    max_characters = automaton.MAX_PATTERN_BYTES

    def text(self, value: Any, path: str) -> str:
        pattern = super().text(value, path)
        if len(pattern.encode()) > self.max_characters:
            message = f"must have at most {self.max_characters} bytes in UTF-8."
            raise FieldError("invalid_value", message, path)
        try:
            automaton.compile_regex(pattern)
        except RegexError as error:
            raise FieldError("invalid_value", f"{error}.", path) from error
        return pattern

    def together(self, texts: list[str]) -> list[str]:
        try:
            automaton.compile_all(texts)
        except RegexError as error:
            raise FieldError("invalid_value", f"{error}.") from error
        return texts


@dataclass(frozen=True, slots=True)
class PerPrompt:
    """One value for every prompt, or one for each."""

    values: list[Any]
    each: bool

    def spread(self, prompts: int, name: str) -> list[Any]:
        """A value per prompt. Raises FieldError when their numbers differ."""
        if not self.each:
            return self.values * prompts
        if len(self.values) != prompts:
            message = f"holds {len(self.values)} entries for {prompts} prompts."
            raise FieldError("invalid_value", message, name)
        return self.values


class PerPromptField(StrictField, serializers.ListField):
    """A value of the `child` field, or an array with one for each prompt; read as PerPrompt.

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
        """Whether this is one value for each prompt."""
        return type(data) is list

    def to_internal_value(self, data: Any) -> PerPrompt:
        if not self.is_array(data):
            return PerPrompt([self.child.to_internal_value(data)], each=False)
        return PerPrompt(self._each(data, self.child.to_internal_value), each=True)

    def for_model(self, value: PerPrompt, model: ModelFiles) -> PerPrompt:
        def check(item: Any) -> Any:
            return self.child.for_model(item, model)

        if not value.each:
            return PerPrompt([check(value.values[0])], each=False)
        return PerPrompt(self._each(value.values, check), each=True)

    def _each(self, items: list[Any], read: Callable[[Any], Any]) -> list[Any]:
        found: list[Any] = []
        for index, item in enumerate(items):
            if item is None and self.holes:
                found.append(None)
                continue
            try:
                found.append(read(item))
            except FieldError as error:
                error.inside(f"[{index}]")
                raise
        return found
