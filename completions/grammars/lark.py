"""Grammars in llguidance's own format: a list of grammars in Lark and JSON Schema."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from completions.grammars import json_schema, lark_messages
from completions.grammars.compiler import DEFAULT_COMPILER, Compiler, Translation
from completions.grammars.exceptions import Diagnostic, GrammarError
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
from completions.grammars.schema.keywords import SchemaObject

# Where llguidance found a fault in a Lark text: at LINE(COLUMN).
_POSITION = re.compile(r"(?:at )?(\d+)\((\d+)\):?")
_QUOTED_LINE = re.compile(r"^ *(\d+) \| (.*)$", re.MULTILINE)
"""A line of the Lark text, as llguidance quotes it."""
_BEFORE = r'^[ \t]*[?!]?\w+\[(?:[^\]\n"]|"(?:[^"\\\n]|\\.)*+")*?'
"""The beginning of a rule up to some attribute; quoted values are skipped."""
_ATTRIBUTE = re.compile(rf"{_BEFORE}\b(temperature|max_tokens|stop)\s*=", re.MULTILINE)
"""An attribute of a rule, as in `name[temperature=0.5]: ...`."""
_ATTRIBUTES = {
    "temperature": "a rule cannot have a temperature of its own; send one for the whole output",
    # llguidance cannot roll back rules with one of the others, and would fail on them later.
    "max_tokens": "a rule cannot count tokens; bound its characters, as in /.{0,80}/",
    "stop": "a rule cannot have stop; write suffix instead, whose text is part of the output",
}
_CAPTURE = re.compile(rf"{_BEFORE}\b((?:stop_)?capture)\b", re.MULTILINE)
_NO_CAPTURE = "has no effect: captures are not returned; find the rule's text in the output"
_KINDS = ("lark_grammar", "json_schema")
_NEXT = re.compile(rf"(?P<schema>%json\s*(?=\{{))|{NOT_LARK_NAMES.pattern}")
_DECODER = json.JSONDecoder()


def translate(
    value: Mapping[str, object], compiler: Compiler = DEFAULT_COMPILER, whitespace: str = COMPACT
) -> Translation:
    """Return the llguidance grammar of a list of grammars. Raises GrammarError."""
    return _Bundle(value, compiler, whitespace).translate()


def screen(value: Mapping[str, object], limits: Limits) -> None:
    """Raise GrammarError for a list beyond the static caps."""
    _Bundle(value, Compiler(limits=limits), COMPACT).prepare()


class _Bundle:
    """llguidance's own list of grammars, which may use each other by name."""

    def __init__(self, value: Mapping[str, Any], compiler: Compiler, whitespace: str) -> None:
        self._value = value
        self._compiler = compiler
        self._limits = compiler.limits
        self._whitespace = whitespace
        self._warnings: list[Diagnostic] = []
        self._schemas: list[tuple[Schema, Callable[[], AbstractContextManager[None]]]] = []
        """The schemas, each with a context that gives errors their place."""

    def translate(self) -> Translation:
        prepared = self.prepare()
        text = json_schema.dump({"grammars": prepared})
        if message := self._compiler.find_error(text):
            for schema, move in self._schemas:
                with move():
                    json_schema.check(schema, self._compiler)
            raise self._make_refusal(message, prepared)
        return Translation(text, self._warnings)

    def _make_refusal(self, message: str, prepared: list[dict[str, Any]]) -> GrammarError:
        """Return llguidance's message, with its position if it is clear which Lark text has it."""
        index = _find_culprit(message, prepared)
        if index is None:
            return GrammarError(lark_messages.explain(message))
        match = _POSITION.match(message)
        line, column = (int(match[1]), int(match[2])) if match else (None, None)
        text = self._value["grammars"][index]["lark_grammar"]
        if line is not None and column is not None:
            column = _map_column(
                _get_line(prepared[index]["lark_grammar"], line), _get_line(text, line), column
            )
        explained = lark_messages.explain(message, text, line, column)
        pointer = f"/grammars/{index}/lark_grammar" if len(prepared) > 1 else None
        return GrammarError(explained, line, column, pointer=pointer)

    def prepare(self) -> list[dict[str, object]]:
        """Return the grammars within the limits. Raises GrammarError."""
        check_depth(self._value, self._limits)
        check_bytes(json_schema.dump(self._value), self._limits)
        grammars = self._value.get("grammars")
        if self._value.keys() != {"grammars"} or not isinstance(grammars, list) or not grammars:
            raise GrammarError('must be {"grammars": [at least one]}')
        return [self._prepare(index, grammar) for index, grammar in enumerate(grammars)]

    def _prepare(self, index: int, grammar: object) -> dict[str, object]:
        keys = set(grammar) - {"name"} if isinstance(grammar, dict) else set()
        if not isinstance(grammar, dict) or len(keys) != 1 or not keys <= set(_KINDS):
            raise GrammarError(f"each grammar has a name, if any, and one of: {', '.join(_KINDS)}")
        (kind,) = keys
        value = grammar[kind]
        if not isinstance(grammar.get("name", ""), str):
            raise GrammarError("a grammar's name must be a string")
        if kind == "json_schema":
            if not isinstance(value, dict):
                raise GrammarError("json_schema must be an object")
            return {**grammar, kind: self._prepare_schema(value, f"/grammars/{index}/{kind}")}
        if not isinstance(value, str):
            raise GrammarError("lark_grammar must be a string")
        return {**grammar, kind: self._prepare_lark(value)}

    def _prepare_schema(self, value: SchemaObject, pointer: str) -> SchemaObject:
        move = partial(json_schema.prefix_errors, pointer)
        with move():
            schema = json_schema.prepare(value, self._whitespace, self._limits)
        self._warnings += schema.move_inside(pointer).warnings
        self._schemas.append((schema, move))
        return schema.compiled

    def _prepare_lark(self, text: str) -> str:
        """Return the text with each schema prepared for llguidance. Lines keep their numbers.

        A schema with llguidance's own option `lenient`, which means that keywords may be ignored,
        is unchanged.
        """
        check_bytes(text, self._limits)
        check_shape(text, self._limits, is_regex=False)
        check_chains(text, self._limits)
        if match := _ATTRIBUTE.search(text):
            raise GrammarError.at_offset(text, match.start(1), _ATTRIBUTES[match[1]])
        for match in _CAPTURE.finditer(text):
            where = GrammarError.format_location(text, match.start(1))
            self._warnings.append(Diagnostic(match[1], "", f"{where}: {match[1]} {_NO_CAPTURE}"))
        pieces: list[str] = []
        position = 0
        for start, end, inline_schema in _iter_inline_schemas(text):
            options = inline_schema.pop(OPTIONS, {})
            if not isinstance(options, dict) or options.get("lenient"):
                continue
            line, column = text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
            move = partial(_move_errors, line, column)
            with move():
                schema = json_schema.prepare(inline_schema, limits=self._limits)
            # Whitespace is llguidance's default, or the client's.
            ours = schema.compiled[OPTIONS].items()
            attributes = {name: value for name, value in ours if not name.startswith("whitespace")}
            schema = replace(schema, compiled={**schema.compiled, OPTIONS: attributes | options})
            self._warnings += _move_to_line(line, schema.warnings)
            self._schemas.append((schema, move))
            # After the JSON, a newline would end the rule.
            newlines = "\n" * text.count("\n", start, end)
            pieces += [text[position:start], "{", newlines, json_schema.dump(schema.compiled)[1:]]
            position = end
        return "".join([*pieces, text[position:]])


def _iter_inline_schemas(text: str) -> Iterator[tuple[int, int, SchemaObject]]:
    """Yield the start, the end and the value of each `%json {...}`. llguidance refuses invalid
    JSON."""
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
def _move_errors(line: int, column: int) -> Iterator[None]:
    try:
        yield
    except GrammarError as error:
        error.line, error.column = line, column
        error.diagnostics = _move_to_line(line, error.diagnostics)
        raise


def _move_to_line(line: int, diagnostics: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Add the line to each diagnostic: a pointer alone does not identify the schema."""
    return [replace(each, message=f"line {line}: {each.message}") for each in diagnostics]


def _find_culprit(message: str, grammars: list[dict[str, Any]]) -> int | None:
    """Return the index of the Lark text that a message is about, which shows the lines at fault."""
    texts = {
        index: each["lark_grammar"] for index, each in enumerate(grammars) if "lark_grammar" in each
    }
    if len(grammars) > 1:
        quoted_lines = [(int(number), line) for number, line in _QUOTED_LINE.findall(message)]
        texts = {
            index: text
            for index, text in texts.items()
            if quoted_lines
            and all(
                _split_lines(text)[number - 1 : number] == [line] for number, line in quoted_lines
            )
        }
    return next(iter(texts)) if len(texts) == 1 else None


def _get_line(text: str, number: int) -> str:
    return "".join(_split_lines(text)[number - 1 : number])


def _map_column(prepared: str, original: str, column: int) -> int | None:
    """Return the column of a client's line for llguidance's, which counts bytes of the prepared
    one; None after the beginning of a schema in the same line, which llguidance does not place
    either."""
    offset = len(prepared.encode(errors="replace")[: column - 1].decode(errors="ignore"))
    # Before the first schema and after the end of one, the lines are equal.
    if prepared[: offset + 1] == original[: offset + 1]:
        return offset + 1
    rest = prepared[offset:]
    is_after = original.endswith(rest) and "%json" not in prepared
    return len(original) - len(rest) + 1 if is_after else None


def _split_lines(text: str) -> list[str]:
    return text.split("\n")
