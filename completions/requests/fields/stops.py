"""The fields `stop` and `stop_regex`: one text or an array of texts, read as a list."""

from typing import Any

from rest_framework import serializers

from completions.contract.stop_regex import automaton
from completions.contract.stop_regex.syntax import RegexError
from completions.errors import FieldError
from completions.requests.fields.base import StrictField, check_count, expect, kind, read_each


class StopField(StrictField, serializers.ListField):
    """Stop strings."""

    max_texts = 16
    max_characters = 256

    def to_schema(self) -> dict[str, Any]:
        text = {"type": "string", "minLength": 1, "maxLength": self.max_characters}
        return {"anyOf": [text, {"type": "array", "items": text, "maxItems": self.max_texts}]}

    def to_internal_value(self, data: Any) -> list[str]:
        if type(data) is str:
            return self.check_together([self.text(data)])
        expect(data, list, "a string or an array of strings")
        check_count(data, self.max_texts, "strings")
        return self.check_together(read_each(data, self.text))

    def text(self, value: Any) -> str:
        """One of the texts. Raises FieldError."""
        if type(value) is not str:
            raise FieldError("invalid_type", f"must be a string, not {kind(value)}.")
        if not 1 <= len(value) <= self.max_characters:
            message = f"has {len(value)} characters; it must have 1-{self.max_characters}."
            raise FieldError("invalid_value", message)
        return value

    def check_together(self, texts: list[str]) -> list[str]:
        """The texts, after what holds for all of them together. Raises FieldError."""
        return texts


class StopRegexField(StopField):
    """Stop regexes. They are compiled here, so that a bad one never reaches a worker."""

    max_texts = automaton.MAX_PATTERNS
    max_characters = automaton.MAX_PATTERN_BYTES

    def text(self, value: Any) -> str:
        pattern = super().text(value)
        if (size := len(pattern.encode())) > self.max_characters:
            message = f"has {size} bytes in UTF-8; it may have at most {self.max_characters}."
            raise FieldError("invalid_value", message)
        try:
            automaton.compile_regex(pattern)
        except RegexError as error:
            raise FieldError("invalid_value", f"{error}.") from error
        return pattern

    def check_together(self, texts: list[str]) -> list[str]:
        try:
            automaton.compile_all(texts)
        except RegexError as error:
            raise FieldError("invalid_value", f"{error}.") from error
        return texts
