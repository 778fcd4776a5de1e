"""llguidance's own grammars: a text in Lark, or a list of grammars in Lark and JSON Schema."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from completions.grammars import json_schema
from completions.grammars.compiler import DEFAULT_COMPILER, Compiler, Translated, brief
from completions.grammars.exceptions import Finding, GrammarError
from completions.grammars.json_schema import Schema
from completions.grammars.lark import inline_schemas
from completions.grammars.limits import (
    COMPACT,
    Limits,
    check_bytes,
    check_chains,
    check_depth,
    check_shape,
)

# Where llguidance found a fault in a Lark text: at LINE(COLUMN).
_POSITION = re.compile(r"(?:at )?(\d+)\((\d+)\):?")
_ATTRIBUTE = re.compile(r"^[ \t]*[?!]?\w+\[[^\]\n]*\b(temperature|max_tokens)\s*=", re.MULTILINE)
"""Of a rule, as in `name[temperature=0.5]: ...`."""
_ATTRIBUTES = {
    "temperature": "a rule cannot have a temperature of its own; send one for the whole output",
    # llguidance cannot take such a rule back, and fails on it sooner or later.
    "max_tokens": "a rule cannot count tokens; bound its characters, as in /.{0,80}/",
}
_KINDS = ("lark_grammar", "json_schema")


def translate(
    value: Mapping[str, Any], compiler: Compiler = DEFAULT_COMPILER, whitespace: str = COMPACT
) -> Translated:
    """The grammar of a list of grammars. Raises GrammarError."""
    return _Bundle(value, compiler, whitespace).translate()


def screen(value: Mapping[str, Any], limits: Limits) -> None:
    """Raises GrammarError for what the static caps refuse."""
    _Bundle(value, Compiler(limits=limits), COMPACT).prepared()


def translate_text(
    text: str, compiler: Compiler = DEFAULT_COMPILER, whitespace: str = COMPACT
) -> Translated:
    """The grammar of one text in Lark. Raises GrammarError."""
    return translate(_alone(text), compiler, whitespace)


def screen_text(text: str, limits: Limits) -> None:
    """The same check for a text in Lark. Raises GrammarError."""
    screen(_alone(text), limits)


def _alone(text: str) -> dict[str, Any]:
    return {"grammars": [{"lark_grammar": text}]}


class _Bundle:
    """llguidance's own list of grammars, which may use each other by name."""

    def __init__(self, value: Mapping[str, Any], compiler: Compiler, whitespace: str) -> None:
        self._value = value
        self._compiler = compiler
        self._whitespace = whitespace
        self._warnings: list[Finding] = []
        self._checks: list[Callable[[], None]] = []
        """Of each schema by itself: raises GrammarError with its pointer."""

    def translate(self) -> Translated:
        prepared = self.prepared()
        text = json_schema.dump({"grammars": prepared})
        if message := self._compiler.complaint(text):
            for check in self._checks:
                check()
            raise GrammarError(brief(message), *_place(message, prepared))
        return Translated(text, self._warnings)

    def prepared(self) -> list[dict[str, Any]]:
        """The grammars within the limits. Raises GrammarError."""
        limits = self._compiler.limits
        check_depth(self._value, limits)
        check_bytes(json_schema.dump(self._value), limits)
        grammars = self._value.get("grammars")
        if self._value.keys() != {"grammars"} or not isinstance(grammars, list) or not grammars:
            raise GrammarError('must be {"grammars": [at least one]}')
        return [self._prepare(index, grammar, limits) for index, grammar in enumerate(grammars)]

    def _prepare(self, index: int, grammar: Any, limits: Limits) -> dict[str, Any]:
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
            return {**grammar, kind: self._schema(f"/grammars/{index}/{kind}", given, limits)}
        if not isinstance(given, str):
            raise GrammarError("lark_grammar must be a string")
        check_lark(given, limits)
        lark, schemas = inline_schemas.prepared(given, limits)
        for each in schemas:
            self._warnings += each.warnings
            self._checks.append(partial(each.check, self._compiler))
        return {**grammar, kind: lark}

    def _schema(self, pointer: str, given: dict[str, Any], limits: Limits) -> dict[str, Any]:
        with _inside(pointer):
            schema = json_schema.prepare(given, self._whitespace, limits)
        self._warnings += [
            replace(each, pointer=pointer + each.pointer) for each in schema.warnings
        ]
        self._checks.append(partial(self._check, pointer, schema))
        return schema.compiled

    def _check(self, pointer: str, schema: Schema) -> None:
        with _inside(pointer):
            json_schema.check(schema, self._compiler)


@contextmanager
def _inside(pointer: str) -> Iterator[None]:
    """What is raised gets the pointer in front of its own."""
    try:
        yield
    except GrammarError as error:
        error.inside(pointer)
        raise


def check_lark(text: str, limits: Limits) -> None:
    """Raises GrammarError when a Lark text is beyond the limits, or asks for what has no effect."""
    check_bytes(text, limits)
    check_shape(text, limits, is_regex=False)
    check_chains(text, limits)
    if found := _ATTRIBUTE.search(text):
        raise GrammarError.at(text, found.start(1), _ATTRIBUTES[found[1]])


def _place(message: str, grammars: list[dict[str, Any]]) -> tuple[int | None, int | None]:
    """Line and column of a complaint about the only Lark text there is."""
    found = _POSITION.match(message) if len(grammars) == 1 else None
    if found is None or "lark_grammar" not in grammars[0]:
        return None, None
    return int(found[1]), int(found[2])
