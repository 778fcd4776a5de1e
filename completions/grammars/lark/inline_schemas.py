"""The JSON Schemas inside a Lark text, `%json {...}`, held to what holds of any other."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from completions.grammars import json_schema
from completions.grammars.compiler import Compiler
from completions.grammars.exceptions import Finding, GrammarError
from completions.grammars.json_schema.schema import OPTIONS, Schema
from completions.grammars.limits import NOT_LARK_NAMES, Limits

_NEXT = re.compile(rf"(?P<schema>%json\s*(?=\{{))|{NOT_LARK_NAMES.pattern}")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class InlineSchema:
    """One of them, and where in the text it begins."""

    line: int
    column: int
    schema: Schema

    @property
    def warnings(self) -> list[Finding]:
        return _on_line(self.line, self.schema.warnings)

    def check(self, compiler: Compiler) -> None:
        """Raises GrammarError when llguidance does not take it."""
        try:
            json_schema.check(self.schema, compiler)
        except GrammarError as error:
            raise _placed(error, self.line, self.column) from error


def prepared(text: str, limits: Limits) -> tuple[str, list[InlineSchema]]:
    """The text with each schema as llguidance is to have it, and these. Its lines stay in place.

    Raises GrammarError for the first keyword refused. A schema with llguidance's own option
    `lenient` is left alone: it asks for keywords to be ignored.
    """
    pieces: list[str] = []
    found: list[InlineSchema] = []
    position = 0
    for start, end, given in _schemas(text):
        options = given.get(OPTIONS, {})
        if not isinstance(options, dict) or options.get("lenient"):
            continue
        line, column = text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
        try:
            schema = _with_options(json_schema.prepare(_bare(given), limits=limits), options)
        except GrammarError as error:
            raise _placed(error, line, column) from error
        found.append(InlineSchema(line, column, schema))
        # Where JSON is over, a newline would end the rule.
        newlines = "\n" * text.count("\n", start, end)
        pieces += [text[position:start], "{", newlines, json_schema.dump(schema.compiled)[1:]]
        position = end
    return "".join([*pieces, text[position:]]), found


def _bare(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != OPTIONS}


def _schemas(text: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Where each begins and ends. What is no JSON is left for llguidance to explain."""
    position = 0
    while match := _NEXT.search(text, position):
        position = match.end()
        if match["schema"]:
            try:
                schema, end = _DECODER.raw_decode(text, position)
            except ValueError:
                continue
            yield position, end, schema
            position = end


def _with_options(schema: Schema, given: dict[str, Any]) -> Schema:
    """Whitespace is llguidance's default, and what the client says of it stays as it is."""
    ours = schema.compiled[OPTIONS].items()
    options = {name: value for name, value in ours if not name.startswith("whitespace")} | given
    return replace(schema, compiled={**schema.compiled, OPTIONS: options})


def _placed(error: GrammarError, line: int, column: int) -> GrammarError:
    error.line, error.column = line, column
    error.findings = _on_line(line, error.findings)
    return error


def _on_line(line: int, findings: Sequence[Finding]) -> list[Finding]:
    """A pointer says nothing of which schema it is into."""
    return [replace(each, message=f"line {line}: {each.message}") for each in findings]
