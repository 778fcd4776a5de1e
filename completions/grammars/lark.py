"""Grammars in llguidance's own format: a list of grammars in Lark and JSON Schema."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from completions.grammars import json_schema
from completions.grammars.compiler import DEFAULT_COMPILER, Compiler, Translated, brief
from completions.grammars.exceptions import Finding, GrammarError
from completions.grammars.json_schema.schema import OPTIONS, Schema
from completions.grammars.limits import (
    COMPACT,
    NOT_LARK_NAMES,
    Limits,
    check_bytes,
    check_chains,
    check_depth,
    check_shape,
)

# Where llguidance found a fault in a Lark text: at LINE(COLUMN).
_POSITION = re.compile(r"(?:at )?(\d+)\((\d+)\):?")
_ATTRIBUTE = re.compile(r"^[ \t]*[?!]?\w+\[[^\]\n]*\b(temperature|max_tokens)\s*=", re.MULTILINE)
"""An attribute of a rule, as in `name[temperature=0.5]: ...`."""
_ATTRIBUTES = {
    "temperature": "a rule cannot have a temperature of its own; send one for the whole output",
    # llguidance cannot roll back such a rule, and would fail on it later.
    "max_tokens": "a rule cannot count tokens; bound its characters, as in /.{0,80}/",
}
_KINDS = ("lark_grammar", "json_schema")
_NEXT = re.compile(rf"(?P<schema>%json\s*(?=\{{))|{NOT_LARK_NAMES.pattern}")
_DECODER = json.JSONDecoder()


def translate(
    value: Mapping[str, Any], compiler: Compiler = DEFAULT_COMPILER, whitespace: str = COMPACT
) -> Translated:
    """The llguidance grammar of a list of grammars. Raises GrammarError."""
    return _Bundle(value, compiler, whitespace).translate()


def screen(value: Mapping[str, Any], limits: Limits) -> None:
    """Raises GrammarError for a list beyond the static caps."""
    _Bundle(value, Compiler(limits=limits), COMPACT).prepared()


class _Bundle:
    """llguidance's own list of grammars, which may use each other by name."""

    def __init__(self, value: Mapping[str, Any], compiler: Compiler, whitespace: str) -> None:
        self._value = value
        self._compiler = compiler
        self._limits = compiler.limits
        self._whitespace = whitespace
        self._warnings: list[Finding] = []
        self._schemas: list[tuple[Schema, Callable[[], AbstractContextManager[None]]]] = []
        """The schemas, each with a context that gives errors their place."""

    def translate(self) -> Translated:
        prepared = self.prepared()
        text = json_schema.dump({"grammars": prepared})
        if message := self._compiler.complaint(text):
            for schema, place in self._schemas:
                with place():
                    json_schema.check(schema, self._compiler)
            raise GrammarError(brief(message), *_place(message, prepared))
        return Translated(text, self._warnings)

    def prepared(self) -> list[dict[str, Any]]:
        """The grammars within the limits. Raises GrammarError."""
        check_depth(self._value, self._limits)
        check_bytes(json_schema.dump(self._value), self._limits)
        grammars = self._value.get("grammars")
        if self._value.keys() != {"grammars"} or not isinstance(grammars, list) or not grammars:
            raise GrammarError('must be {"grammars": [at least one]}')
        return [self._prepare(index, grammar) for index, grammar in enumerate(grammars)]

    def _prepare(self, index: int, grammar: Any) -> dict[str, Any]:
        keys = set(grammar) - {"name"} if isinstance(grammar, dict) else set()
        if len(keys) != 1 or not keys <= set(_KINDS):
            raise GrammarError(f"each grammar has a name, if any, and one of: {', '.join(_KINDS)}")
        (kind,) = keys
        given = grammar[kind]
        if not isinstance(grammar.get("name", ""), str):
            raise GrammarError("a grammar's name must be a string")
        if kind == "json_schema":
            if not isinstance(given, dict):
                raise GrammarError("json_schema must be an object")
            return {**grammar, kind: self._schema(given, f"/grammars/{index}/{kind}")}
        if not isinstance(given, str):
            raise GrammarError("lark_grammar must be a string")
        return {**grammar, kind: self._lark(given)}

    def _schema(self, given: dict[str, Any], pointer: str) -> dict[str, Any]:
        place = partial(json_schema.errors_inside, pointer)
        with place():
            schema = json_schema.prepare(given, self._whitespace, self._limits)
        self._warnings += schema.inside(pointer).warnings
        self._schemas.append((schema, place))
        return schema.compiled

    def _lark(self, text: str) -> str:
        """The text with each schema prepared for llguidance. Lines keep their numbers.

        A schema with llguidance's own option `lenient`, which means that keywords may be ignored,
        is unchanged.
        """
        check_bytes(text, self._limits)
        check_shape(text, self._limits, is_regex=False)
        check_chains(text, self._limits)
        if found := _ATTRIBUTE.search(text):
            raise GrammarError.at(text, found.start(1), _ATTRIBUTES[found[1]])
        pieces: list[str] = []
        position = 0
        for start, end, given in _inline_schemas(text):
            options = given.pop(OPTIONS, {})
            if not isinstance(options, dict) or options.get("lenient"):
                continue
            line, column = text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
            place = partial(_errors_at, line, column)
            with place():
                schema = json_schema.prepare(given, limits=self._limits)
            # Whitespace is llguidance's default, or the client's.
            ours = schema.compiled[OPTIONS].items()
            kept = {name: value for name, value in ours if not name.startswith("whitespace")}
            schema = replace(schema, compiled={**schema.compiled, OPTIONS: kept | options})
            self._warnings += _on_line(line, schema.warnings)
            self._schemas.append((schema, place))
            # After the JSON, a newline would end the rule.
            newlines = "\n" * text.count("\n", start, end)
            pieces += [text[position:start], "{", newlines, json_schema.dump(schema.compiled)[1:]]
            position = end
        return "".join([*pieces, text[position:]])


def _inline_schemas(text: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """The start, the end and the value of each `%json {...}`. llguidance refuses invalid JSON."""
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


@contextmanager
def _errors_at(line: int, column: int) -> Iterator[None]:
    try:
        yield
    except GrammarError as error:
        error.line, error.column = line, column
        error.findings = _on_line(line, error.findings)
        raise


def _on_line(line: int, findings: Sequence[Finding]) -> list[Finding]:
    """Findings with their line, because a pointer does not say which schema it is in."""
    return [replace(each, message=f"line {line}: {each.message}") for each in findings]


def _place(message: str, grammars: list[dict[str, Any]]) -> tuple[int | None, int | None]:
    """Line and column of a complaint, if there is only one Lark text."""
    found = _POSITION.match(message) if len(grammars) == 1 else None
    if found is None or "lark_grammar" not in grammars[0]:
        return None, None
    return int(found[1]), int(found[2])
