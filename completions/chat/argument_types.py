"""Converts an argument of a call that has no quotes around strings to JSON, by its schema."""

from collections.abc import Mapping

from completions.chat.tools import dump
from completions.contract import strict_json
from completions.grammars.schema.questions import ANY_KIND, NO, YES, Answer, Path, SchemaQuestions

_EMPTY = {"array": "[]", "object": "{}", "null": "null"}


class ArgumentTypes:
    """The types of a tool's arguments. Its schema is unchecked client input."""

    def __init__(self, schema: Mapping[str, object]) -> None:
        self._schema = SchemaQuestions(dict(schema))
        self._kinds: dict[Path, Answer] = {}

    def _list_kinds(self, path: Path) -> Answer:
        """Return the types that the argument at a path, or a part of it, may have."""
        if path not in self._kinds:
            kinds = self._schema.list_kinds(path)
            self._kinds[path] = ANY_KIND if kinds is None else kinds
        return self._kinds[path]

    def is_string(self, path: Path) -> bool:
        """Return whether only strings are allowed, so that every text is one."""
        return self._list_kinds(path) == Answer({"string"})

    def allows(self, kind: str, path: Path) -> bool:
        """Return whether a type is allowed, or nothing is said of the argument."""
        return kind in self._list_kinds(path)

    def find_empty(self, path: Path) -> str:
        """Return the JSON of an empty text where no string is allowed."""
        return next((text for kind, text in _EMPTY.items() if self.allows(kind, path)), "")

    def to_json(self, path: Path, text: str) -> str:
        """Return the JSON of an argument.

        A text that is valid JSON is read as a string only if the schema names strings and may allow
        this one, and the value is not certainly an instance of the schema.
        """
        try:
            value = strict_json.loads(text)
        except strict_json.StrictJSONError:
            return dump(text)
        kinds = self._list_kinds(path)
        names_strings = "string" in kinds and kinds != ANY_KIND
        may_be_text = names_strings and self._schema.check(text, path) != NO
        if may_be_text and (isinstance(value, str) or self._schema.check(value, path) != YES):
            return dump(text)
        return text.strip()
