"""The keywords of JSON Schema: which are enforced, which are harmless, which must be refused.

llguidance refuses some keywords without saying where they are, and silently ignores others. This
walk over the root and all schemas that references reach finds both, and removes keywords that have
no effect but would be refused (`uniqueItems: false`).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, cast
from urllib.parse import unquote

from completions.grammars.exceptions import Diagnostic
from completions.grammars.json_schema.nodes import iter_parts
from completions.grammars.json_schema.pointers import escape, resolve
from completions.grammars.json_schema.rewriting import dialects, unknown
from completions.grammars.json_schema.rewriting.formats import PATTERNS
from completions.grammars.limits import Limits, get_children
from completions.grammars.messages import format_value, truncate


@dataclass(slots=True)
class Survey:
    """The result of a walk. `schemas` maps pointers to the schemas that count."""

    schemas: dict[str, dict[str, Any]] = field(default_factory=dict)
    refusals: list[Diagnostic] = field(default_factory=list)
    warnings: list[Diagnostic] = field(default_factory=list)
    targets: dict[str, tuple[str, Any]] = field(default_factory=dict)
    """The pointer and the schema that each reference leads to."""


ANNOTATIONS = frozenset(
    (
        "title", "description", "default", "examples", "example", "deprecated", "readOnly",
        "writeOnly", "$comment", "$schema", "$id", "id", "$anchor", "$vocabulary",
        "contentEncoding", "contentMediaType", "contentSchema", "$defs", "definitions",
        "discriminator", "externalDocs", "xml",
    )
)  # fmt: skip
TYPES = frozenset(["object", "array", "string", "number", "integer", "boolean", "null"])
_INTEGER_RANGES: Mapping[str, tuple[int, int]] = {
    "int8": (-(2**7), 2**7 - 1), "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1), "int64": (-(2**63) + 2**10, 2**63 - 1),
    "uint8": (0, 2**8 - 1), "uint16": (0, 2**16 - 1), "uint32": (0, 2**32 - 1),
}  # fmt: skip
"""The lowest int64 values are left out: llguidance holds bounds as floats, and cannot negate
them."""
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")

# Keywords that change nothing when they have one of these values, and are then taken out.
_WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "propertyNames": (True, {}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "nullable": (False,),
    "minProperties": (0,),
    "allOf": ([],),
}
_ALONE = {"minContains": "contains", "maxContains": "contains", "then": "if", "else": "if"}
"""Keywords without effect unless another one stands beside them."""
_ANCHORS = frozenset(("$dynamicAnchor", "$recursiveAnchor"))
"""Without effect as long as no dynamic reference leads there, which is refused."""
UNSUPPORTED: Mapping[str, str] = {
    "unevaluatedProperties": "declare all properties in one place, with additionalProperties",
    "unevaluatedItems": "declare all items in one place, with items",
    "$dynamicRef": "refer by $ref",
    "$recursiveRef": "refer by $ref",
    "nullable": 'add "null" to type',
    "divisibleBy": "send multipleOf",
    "extends": "send allOf",
    "disallow": "send not",
    "x-guidance": "leave it out",
}
"""Keywords that are refused, each with what to send instead."""

_COUNT, _NUMBER, _SCHEMA, _SCHEMAS, _MAP, _STRINGS, _TEXT, _NEEDS = (
    "a non-negative integer", "a number", "a schema", "an array of schemas", "an object of schemas",
    "an array of strings", "a string", "an object of schemas or arrays of strings",
)  # fmt: skip
ENFORCED: Mapping[str, str] = {
    "type": "", "enum": "an array", "const": "", "$ref": _TEXT, "format": _TEXT, "pattern": _TEXT,
    "minLength": _COUNT, "maxLength": _COUNT, "minItems": _COUNT, "maxItems": _COUNT,
    "minProperties": _COUNT, "maxProperties": _COUNT,
    "minimum": _NUMBER, "maximum": _NUMBER, "multipleOf": _NUMBER,
    "exclusiveMinimum": "a number or a boolean", "exclusiveMaximum": "a number or a boolean",
    "properties": _MAP, "patternProperties": _MAP, "required": _STRINGS,
    "additionalProperties": _SCHEMA, "additionalItems": _SCHEMA,
    "items": "a schema or an array of schemas", "prefixItems": _SCHEMAS,
    "anyOf": _SCHEMAS, "allOf": _SCHEMAS, "oneOf": _SCHEMAS, "not": _SCHEMA,
    "if": _SCHEMA, "then": _SCHEMA, "else": _SCHEMA, "uniqueItems": "a boolean",
    "contains": _SCHEMA, "minContains": _COUNT, "maxContains": _COUNT, "propertyNames": _SCHEMA,
    "dependentRequired": "an object of arrays of strings", "dependentSchemas": _MAP,
    "dependencies": _NEEDS,
}  # fmt: skip
"""The shape of each enforced keyword's value.

A further keyword gets its meaning in `rewriting/`: what it and its negation accept in
`plain_keyword_readings`, or in `keyword_readings` if it holds schemas, which `nodes`
then finds. If llguidance does not enforce it, `rewriter._WRITTEN_ANEW` has it too. Its row,
with an example that a test runs, is in docs/json-schema.md.
"""
_ALL_EXACT = 2**53
_CONSTRAINTS = (*ENFORCED, *sorted(UNSUPPORTED))
_DRAFTS = re.compile(
    r"https?://json-schema\.org/(draft-0[467]/schema|draft/20(19-09|20-12)/schema)#?"
)


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "": lambda value: True,
    "an array": lambda value: isinstance(value, list),
    _TEXT: lambda value: isinstance(value, str),
    _COUNT: lambda value: _is_number(value) and value >= 0 and value == int(value),
    _NUMBER: _is_number,
    "a number or a boolean": lambda value: isinstance(value, int | float),
    _SCHEMA: _is_schema,
    _SCHEMAS: lambda value: isinstance(value, list) and all(map(_is_schema, value)),
    "a schema or an array of schemas": lambda value: (
        _is_schema(value) or (isinstance(value, list) and all(map(_is_schema, value)))
    ),
    _MAP: lambda value: isinstance(value, dict) and all(map(_is_schema, value.values())),
    _STRINGS: lambda value: _is_strings(value),
    "a boolean": lambda value: isinstance(value, bool),
    "an object of arrays of strings": lambda value: (
        isinstance(value, dict) and all(map(_is_strings, value.values()))
    ),
    _NEEDS: lambda value: (
        isinstance(value, dict)
        and all(_is_schema(x) or isinstance(x, str) or _is_strings(x) for x in value.values())
    ),
}


def survey_schema(root: dict[str, Any], limits: Limits) -> Survey:
    """Walk the schema, taking out what has no effect: `root` is changed in place."""
    return _Walk(root, limits).run()


class _Walk:
    def __init__(self, root: dict[str, Any], limits: Limits) -> None:
        self._root = root
        self._limits = limits
        self._found = Survey()
        self._anchors = dict(_iter_anchors(root))
        self._draft = dialects.detect_draft(root)

    def run(self) -> Survey:
        waiting: list[tuple[str, Any]] = [("", self._root)]
        while waiting:
            pointer, schema = waiting.pop()
            if pointer in self._found.schemas or not isinstance(schema, dict):
                continue
            self._found.schemas[pointer] = schema
            self._check(pointer, schema)
            inside = list(iter_parts(schema, pointer))
            reference = schema.get("$ref")
            if isinstance(reference, str) and (target := self._resolve(reference)) is not None:
                self._found.targets[reference] = target
                inside.append(target)
            waiting += reversed(inside)
        return self._found

    def _refuse(self, keyword: str, pointer: str, message: str) -> None:
        path = f"{pointer}/{escape(keyword)}"
        self._found.refusals.append(Diagnostic(keyword, path, message))

    def _warn(self, keyword: str, pointer: str, message: str) -> None:
        path = f"{pointer}/{escape(keyword)}"
        self._found.warnings.append(Diagnostic(keyword, path, message))

    def _check(self, pointer: str, schema: dict[str, Any]) -> None:
        for keyword, reason in dialects.find_without_effect(schema, self._draft).items():
            del schema[keyword]
            if keyword not in ANNOTATIONS:
                self._warn(keyword, pointer, reason)
        for keyword in list(schema):
            if _has_no_effect(keyword, schema):
                del schema[keyword]
        if not isinstance(schema.get("$defs", {}), dict):
            del schema["$defs"]
            self._warn("$defs", pointer, "$defs has no effect: it is not an object of schemas")
        for keyword, value in list(schema.items()):
            if keyword in UNSUPPORTED:
                message = f"the keyword {keyword} is not supported; {UNSUPPORTED[keyword]}"
                self._refuse(keyword, pointer, message)
            elif keyword in ENFORCED:
                self._check_value(pointer, schema, keyword, value)
            elif keyword not in ANNOTATIONS:
                self._check_unknown(pointer, keyword)
        self._check_identifiers(pointer, schema)

    def _check_unknown(self, pointer: str, keyword: str) -> None:
        if meant := unknown.suggest(keyword, _CONSTRAINTS):
            message = f"unknown keyword {truncate(keyword)}; did you mean {meant}?"
            if not re.fullmatch(r"[\w-]+", keyword):
                name = f'"{truncate(keyword)}"'
                message = f"unknown keyword {name}; write {meant}, or x-{meant} for an annotation"
            self._refuse(keyword, pointer, message)
        else:
            message = f"the keyword {truncate(keyword)} is unknown and has no effect"
            self._warn(keyword, pointer, message)

    def _check_value(self, pointer: str, schema: dict[str, Any], keyword: str, value: Any) -> None:
        expected = ENFORCED[keyword]
        if not _CHECKS[expected](value):
            quoted = format_value(value)
            what = "; a schema is an object, true or false" if "schema" in expected else ""
            self._refuse(keyword, pointer, f"{keyword} must be {expected}, not {quoted}{what}")
        elif problem := self._find_problem(schema, keyword, value):
            self._refuse(keyword, pointer, problem)
        elif expected == _COUNT:
            schema[keyword] = int(value)
        elif keyword == "format":
            self._check_format(pointer, schema, value)

    def _find_problem(self, schema: dict[str, Any], keyword: str, value: Any) -> str:
        """Return what is wrong with a value of the right shape; empty if nothing is."""
        caps = {"enum": self._limits.max_enum, "properties": self._limits.max_properties}
        if keyword in caps and len(value) > caps[keyword]:
            return f"{keyword} holds {len(value)} values, more than {caps[keyword]}; give fewer"
        if ENFORCED[keyword] == _COUNT and value > self._limits.max_length:
            return (
                f"{keyword} is {format_value(value)}; it may be at most {self._limits.max_length}"
            )
        if keyword == "multipleOf" or keyword in BOUNDS:
            return self._find_number_problem(keyword, value)
        if keyword in ("enum", "const") and (number := _find_inexact(value)) is not None:
            return f"{str(number)[:40]} is too large to be written exactly; give it as a string"
        if keyword == "type":
            names = value if isinstance(value, list) else [value]
            wrong = [name for name in names if not isinstance(name, str) or name not in TYPES]
            types = ", ".join(sorted(TYPES))
            if wrong and not isinstance(wrong[0], str):
                return (
                    f"type must be one or several names, not {format_value(wrong[0])}; use {types}"
                )
            return f"unknown type {wrong[0][:64]}; use {types}" if wrong else ""
        if keyword == "$ref" and self._resolve(value) is None:
            if not value.startswith("#"):
                return (
                    f"$ref can only lead into the schema itself, not to {value[:100]}; copy what "
                    "it leads to into $defs, and refer to #/$defs/NAME"
                )
            return f"$ref leads nowhere: {value[:100]}; define it in $defs, or correct the pointer"
        return ""

    def _find_number_problem(self, keyword: str, value: float) -> str:
        if keyword in BOUNDS:
            if isinstance(value, int) and abs(value) < 2**63 - 1 and float(value) != value:
                return f"{keyword}: {value} cannot be held exactly; give a rounder one"
            return ""  # a larger value is stored as the largest int64
        if value <= 0:
            return f"multipleOf is {format_value(value)}; it must be greater than 0"
        if _count_remainders(value) > (bound := self._limits.max_multiple):
            limit = f"at most {bound}, trailing zeros not counted"
            return f"multipleOf is {format_value(value)}; it may be {limit}"
        return ""

    def _check_format(self, pointer: str, schema: dict[str, Any], name: str) -> None:
        types = schema.get("type", "string")
        types = types if isinstance(types, list) else [types]
        if "string" in types:
            if name not in PATTERNS and name != "unknown":
                del schema["format"]
                message = f"the format {name[:64]} is unknown and has no effect"
                self._warn("format", pointer, message)
            return
        del schema["format"]
        if "integer" in types and name in _INTEGER_RANGES:
            low, high = _INTEGER_RANGES[name]
            schema["minimum"] = max(schema.get("minimum", low), low)
            schema["maximum"] = min(schema.get("maximum", high), high)
        elif name not in ("float", "double"):
            message = f"the format {name[:64]} has no effect on this type"
            self._warn("format", pointer, message)

    def _check_identifiers(self, pointer: str, schema: dict[str, Any]) -> None:
        dialect = schema.get("$schema")
        if isinstance(dialect, str) and not _DRAFTS.fullmatch(dialect):
            del schema["$schema"]
            self._warn("$schema", pointer, "this dialect is read as draft 2020-12")
        if not pointer and isinstance(schema.get("id"), str):
            del schema["id"]  # `$id` in draft 4, where references inside the schema may miss it
        base = schema.get("$id")
        if base is None:
            return
        if pointer and not str(base).startswith("#") and _has_reference(schema):
            message = (
                "$id is only supported at the root, or where no $ref follows; leave it out, and "
                "refer by pointers from the root"
            )
            self._refuse("$id", pointer, message)
        del schema["$id"]

    def _resolve(self, reference: str) -> tuple[str, Any] | None:
        anchored = self._anchors.get(unquote(reference[1:])) if reference[:1] == "#" else None
        return anchored or resolve(self._root, reference)


def _count_remainders(multiple: float) -> int:
    """Return the number of states that llguidance needs to recognise multiples."""
    digits = "".join(map(str, Decimal(str(multiple)).as_tuple().digits))
    return int(digits.rstrip("0") or "0")


def _find_inexact(value: Any) -> float | None:
    """Return a number in a JSON value that llguidance would change: it holds numbers as floats, and
    cuts integers to 64 bits."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        waiting += get_children(item)
        if not _is_number(item) or abs(item) <= _ALL_EXACT:
            continue
        if abs(item) >= 2**63 or Decimal(repr(float(item))) != Decimal(item):
            return cast(float, item)
    return None


def _has_no_effect(keyword: str, schema: dict[str, Any]) -> bool:
    if keyword in _ANCHORS:
        return True
    if keyword in _ALONE:
        return _ALONE[keyword] not in schema
    if keyword == "if":
        return "then" not in schema and "else" not in schema
    value = schema[keyword]
    return any(
        value == harmless and type(value) is type(harmless)
        for harmless in _WITHOUT_EFFECT.get(keyword, ())
    )


def _has_reference(value: Any) -> bool:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict) and "$ref" in item:
            return True
        waiting += get_children(item)
    return False


def _iter_anchors(root: dict[str, Any]) -> Iterator[tuple[str, tuple[str, Any]]]:
    """Yield the schemas that have a name. In a value such as one of ``enum``, ``$anchor`` is
    data."""
    waiting: list[tuple[str, Any]] = [("", root)]
    while waiting:
        pointer, schema = waiting.pop()
        if not isinstance(schema, dict):
            continue
        if isinstance(schema.get("$anchor"), str):
            yield schema["$anchor"], (pointer, schema)
        waiting += iter_parts(schema, pointer)
        waiting.append((f"{pointer}/contentSchema", schema.get("contentSchema")))
        for keyword in ("$defs", "definitions"):
            if isinstance(schemas := schema.get(keyword), dict):
                path = f"{pointer}/{keyword}"
                waiting += ((f"{path}/{escape(name)}", inner) for name, inner in schemas.items())
