"""The keywords of JSON Schema: which are enforced, which are harmless, which must be refused.

llguidance refuses some keywords without saying where they are, and silently ignores others. This
walk over the root and all schemas that references reach finds both, and removes keywords that have
no effect but would be refused (`uniqueItems: false`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from completions.grammars.exceptions import Diagnostic
from completions.grammars.json_schema.rewriting import unknown
from completions.grammars.json_schema.rewriting.formats import PATTERNS
from completions.grammars.limits import Limits, iter_values
from completions.grammars.messages import format_value, truncate
from completions.grammars.schema import dialects
from completions.grammars.schema.keywords import (
    ANNOTATIONS,
    BOUNDS,
    COUNT,
    KEYWORDS,
    TYPES,
    SchemaObject,
    is_number,
)
from completions.grammars.schema.nodes import Document, SchemaNode
from completions.grammars.schema.pointers import escape


@dataclass(slots=True)
class Survey:
    """The result of a walk."""

    document: Document
    nodes: dict[str, SchemaNode] = field(default_factory=dict)
    """The schemas that count, by pointer."""
    refusals: list[Diagnostic] = field(default_factory=list)
    warnings: list[Diagnostic] = field(default_factory=list)


_INTEGER_RANGES: Mapping[str, tuple[int, int]] = {
    "int8": (-(2**7), 2**7 - 1), "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1), "int64": (-(2**63) + 2**10, 2**63 - 1),
    "uint8": (0, 2**8 - 1), "uint16": (0, 2**16 - 1), "uint32": (0, 2**32 - 1),
}  # fmt: skip
"""The lowest int64 values are left out: llguidance holds bounds as floats, and cannot negate
them."""
_ANCHORS = frozenset(("$dynamicAnchor", "$recursiveAnchor"))
"""Without effect as long as no dynamic reference leads there, which is refused."""
_ALL_EXACT = 2**53
_DRAFTS = re.compile(
    r"https?://json-schema\.org/(draft-0[467]/schema|draft/20(19-09|20-12)/schema)#?"
)


def survey_schema(root: SchemaObject, limits: Limits) -> Survey:
    """Walk the schema, taking out what has no effect: `root` is changed in place."""
    return _Walk(root, limits).run()


class _Walk:
    def __init__(self, root: SchemaObject, limits: Limits) -> None:
        self._limits = limits
        self._document = Document(root)
        self._found = Survey(self._document)
        self._draft = dialects.detect_draft(root)

    def run(self) -> Survey:
        waiting = [self._document.root]
        while waiting:
            node = waiting.pop()
            if node.pointer in self._found.nodes or isinstance(node.schema, bool):
                continue
            self._found.nodes[node.pointer] = node
            self._check(node)
            inside = list(node.parts)
            if (target := node.target) is not None:
                inside.append(target)
            waiting += reversed(inside)
        return self._found

    def _refuse(self, keyword: str, pointer: str, message: str) -> None:
        path = f"{pointer}/{escape(keyword)}"
        self._found.refusals.append(Diagnostic(keyword, path, message))

    def _warn(self, keyword: str, pointer: str, message: str) -> None:
        path = f"{pointer}/{escape(keyword)}"
        self._found.warnings.append(Diagnostic(keyword, path, message))

    def _check(self, node: SchemaNode) -> None:
        pointer, schema = node.pointer, node.keywords
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
            if keyword not in KEYWORDS:
                if keyword not in ANNOTATIONS:
                    self._check_unknown(pointer, keyword)
            elif instead := KEYWORDS[keyword].instead:
                message = f"the keyword {keyword} is not supported; {instead}"
                self._refuse(keyword, pointer, message)
            else:
                self._check_value(node, keyword, value)
        self._check_identifiers(pointer, schema)

    def _check_unknown(self, pointer: str, keyword: str) -> None:
        if near := unknown.suggest(keyword, KEYWORDS):
            message = f"unknown keyword {truncate(keyword)}; did you mean {near}?"
            if not re.fullmatch(r"[\w-]+", keyword):
                name = f'"{truncate(keyword)}"'
                message = f"unknown keyword {name}; write {near}, or x-{near} for an annotation"
            self._refuse(keyword, pointer, message)
        else:
            message = f"the keyword {truncate(keyword)} is unknown and has no effect"
            self._warn(keyword, pointer, message)

    def _check_value(self, node: SchemaNode, keyword: str, value: Any) -> None:
        pointer, shape = node.pointer, KEYWORDS[keyword].shape
        if not shape.fits(value):
            quoted = format_value(value)
            what = "; a schema is an object, true or false" if shape.has_schemas else ""
            self._refuse(keyword, pointer, f"{keyword} must be {shape.name}, not {quoted}{what}")
        elif problem := self._find_problem(keyword, value):
            self._refuse(keyword, pointer, problem)
        elif shape is COUNT:
            node.keywords[keyword] = int(value)
        elif keyword == "format":
            self._check_format(node, value)

    def _find_problem(self, keyword: str, value: Any) -> str:
        """Return what is wrong with a value of the right shape; empty if nothing is."""
        caps = {"enum": self._limits.max_enum, "properties": self._limits.max_properties}
        if keyword in caps and len(value) > caps[keyword]:
            return f"{keyword} holds {len(value)} values, more than {caps[keyword]}; give fewer"
        if KEYWORDS[keyword].shape is COUNT and value > self._limits.max_length:
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
        if keyword == "$ref" and self._document.resolve(value) is None:
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

    def _check_format(self, node: SchemaNode, name: str) -> None:
        pointer, schema = node.pointer, node.keywords
        types = node.types or ["string"]
        if "string" in types:
            if name not in PATTERNS and name != "unknown":
                del schema["format"]
                message = f"the format {name[:64]} is unknown and has no effect"
                self._warn("format", pointer, message)
            return
        del schema["format"]
        if "integer" in types and name in _INTEGER_RANGES:
            low, high = _INTEGER_RANGES[name]
            schema["minimum"] = max(node.get("minimum", low), low)
            schema["maximum"] = min(node.get("maximum", high), high)
        elif name not in ("float", "double"):
            message = f"the format {name[:64]} has no effect on this type"
            self._warn("format", pointer, message)

    def _check_identifiers(self, pointer: str, schema: SchemaObject) -> None:
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


def _count_remainders(multiple: float) -> int:
    """Return the number of states that llguidance needs to recognise multiples."""
    digits = "".join(map(str, Decimal(str(multiple)).as_tuple().digits))
    return int(digits.rstrip("0") or "0")


def _find_inexact(value: object) -> float | None:
    """Return a number in a JSON value that llguidance would change: it holds numbers as floats, and
    cuts integers to 64 bits."""
    numbers = (each for each in iter_values(value) if is_number(each) and abs(each) > _ALL_EXACT)
    return next(
        (
            each
            for each in numbers
            if abs(each) >= 2**63 or Decimal(repr(float(each))) != Decimal(each)
        ),
        None,
    )


def _has_no_effect(name: str, schema: SchemaObject) -> bool:
    if name not in KEYWORDS:
        return name in _ANCHORS
    keyword, value = KEYWORDS[name], schema[name]
    if keyword.beside and schema.keys().isdisjoint(keyword.beside):
        return True
    return any(value == each and type(value) is type(each) for each in keyword.harmless)


def _has_reference(value: object) -> bool:
    return any(isinstance(each, dict) and "$ref" in each for each in iter_values(value))
