"""JSON Schema, exactly: a keyword that llguidance cannot enforce is refused, never ignored."""

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from completions.contract import strict_json
from completions.grammars.compiler import DEFAULT_COMPILER, Compiler, Translated, brief
from completions.grammars.exceptions import Finding, GrammarError
from completions.grammars.json_schema.keywords import BOUNDS, Survey, resolve, survey
from completions.grammars.limits import (
    COMPACT,
    DEFAULT_LIMITS,
    FLEXIBLE,
    Limits,
    check_bytes,
    check_depth,
    check_shape,
    children,
    longest_chain,
)

_UNSUPPORTED = re.compile(r"Unimplemented keys: \[(.*)\]")
_RANGE = re.compile(r"Failed to generate regex for (integer|float) range")
OPTIONS = "x-guidance"
"""The key by which llguidance takes compile options out of a schema."""
_SPACES = {COMPACT: 0, FLEXIBLE: 32}
"""Characters in a row. Bounded: a model that only ever writes spaces would never end."""
_ROOT = "root"
_INSIDE = f"#/$defs/{_ROOT}"
_TRIED = 100
"""Schemas compiled one by one to find which of them llguidance refuses."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]|\\[xuc0]")


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema that may be compiled: checked, with options for llguidance, and what is ignored."""

    compiled: dict[str, Any]
    warnings: list[Finding]
    survey: Survey

    def grammar(self) -> str:
        return dump({"grammars": [{"json_schema": self.compiled}]})

    def part(self, pointer: str, types: Sequence[str] = ()) -> dict[str, Any]:
        """The schema at a pointer inside this one, by itself; of its types only these, if any."""
        alone = _without_options(self.survey.schemas.get(pointer, {}))
        narrowed = {**alone, "type": list(types)} if types else alone
        if '"$ref":' in dump(alone):
            reference: dict[str, Any] = {"$ref": _INSIDE + quote(pointer)}
            narrowed = {"allOf": [reference, {"type": list(types)}]} if types else reference
            narrowed["$defs"] = {_ROOT: _moved(_without_options(self.compiled))}
        return {**narrowed, OPTIONS: self.compiled[OPTIONS]}


def _without_options(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != OPTIONS}


def parse(value: Mapping[str, Any] | str) -> dict[str, Any]:
    """The schema of a request field, given as an object or as text. Raises GrammarError."""
    if not isinstance(value, str):
        return dict(value)
    try:
        schema = strict_json.loads(value)
    except strict_json.StrictJSONError as error:
        message = f"the string does not hold JSON: {error.reason}"
        raise GrammarError(message, error.line, error.column) from error
    if not isinstance(schema, dict):
        raise GrammarError("the string must hold a JSON object")
    return schema


def prepare(
    value: Mapping[str, Any] | str, whitespace: str | int = COMPACT, limits: Limits = DEFAULT_LIMITS
) -> Schema:
    """Check a schema within the limits. Raises GrammarError for the first keyword refused.

    `whitespace` is `compact`, `flexible`, or how many characters of it may stand in a row.
    """
    if isinstance(value, str):
        check_bytes(value, limits)
    schema = parse(value)
    check_depth(schema, limits)
    check_bytes(dump(schema), limits)
    _check_chains(schema, limits)
    schema = copy.deepcopy(schema)
    seen = survey(schema, limits)
    if seen.refusals:
        first = seen.refusals[0]
        findings = [*seen.refusals, *seen.warnings]
        raise GrammarError(first.message, pointer=first.pointer, findings=findings)
    _check_patterns(seen, limits)
    return Schema({**schema, OPTIONS: _options(seen, whitespace)}, seen.warnings, seen)


def screen(value: Mapping[str, Any] | str, limits: Limits) -> None:
    """Raises GrammarError for what the static caps and the keywords refuse."""
    prepare(value, limits=limits)


def _check_patterns(seen: Survey, limits: Limits) -> None:
    for pointer, schema in seen.schemas.items():
        patterns = {f"{pointer}/pattern": schema.get("pattern")}
        for name in schema.get("patternProperties", ()):
            patterns[f"{pointer}/patternProperties"] = name
        for place, pattern in patterns.items():
            if not isinstance(pattern, str):
                continue
            try:
                check_shape(pattern, limits, is_regex=True)
            except GrammarError as error:
                raise GrammarError(error.message, pointer=place) from error


def _options(seen: Survey, whitespace: str | int) -> dict[str, Any]:
    spaces = _SPACES[whitespace] if isinstance(whitespace, str) else whitespace
    options: dict[str, Any] = {"whitespace_flexible": False}
    if spaces:
        options = {"whitespace_pattern": rf"[ \t\n\r]{{1,{spaces}}}"}
    # llguidance lets an escape such as \u0061 slip past the names that are declared, so escapes
    # by number are left out; but where a text must hold control characters they are needed.
    if any(map(_has_open_names, seen.schemas.values())) and not _needs_control(seen):
        options["json_allowed_escapes"] = 'nrbtf\\"'
    return options


def _has_open_names(schema: dict[str, Any]) -> bool:
    declares = bool(schema.get("properties")) or bool(schema.get("patternProperties"))
    return declares and schema.get("additionalProperties") is not False


def _needs_control(seen: Survey) -> bool:
    return any(_CONTROL.search(text) for text in _texts(seen.schemas.get("", {})))


def _texts(value: Any) -> list[str]:
    """Every string and every name in a JSON value."""
    found, waiting = [], [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, dict):
            found += item
        waiting += children(item)
    return found


def dump(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise GrammarError("a number is too large") from error


def _check_chains(root: dict[str, Any], limits: Limits) -> None:
    """Raises GrammarError when references lead too far: llguidance recurses along them."""
    used: dict[int, list[int]] = {}
    waiting: list[Any] = [root]
    while waiting:
        value = waiting.pop()
        if id(value) in used:
            continue
        inside = [child for child in children(value) if isinstance(child, dict | list)]
        reference = value.get("$ref") if isinstance(value, dict) else None
        found = resolve(root, reference) if isinstance(reference, str) else None
        inside += [found[1]] if found else []
        used[id(value)] = [id(child) for child in inside]
        waiting += inside
    if longest_chain(used) > limits.max_chain:
        raise GrammarError(f"$ref chains lead through more than {limits.max_chain} levels")


def translate(
    value: Mapping[str, Any] | str,
    compiler: Compiler = DEFAULT_COMPILER,
    whitespace: str = COMPACT,
) -> Translated:
    """A grammar of JSON texts that are instances of the schema. Raises GrammarError."""
    schema = checked(value, compiler, whitespace)
    return Translated(schema.grammar(), schema.warnings)


def checked(
    value: Mapping[str, Any] | str, compiler: Compiler, whitespace: str | int = COMPACT
) -> Schema:
    """A schema that llguidance takes. Raises GrammarError."""
    schema = prepare(value, whitespace, compiler.limits)
    check(schema, compiler)
    return schema


def check(schema: Schema, compiler: Compiler) -> None:
    """Raises GrammarError when llguidance does not take a schema that was prepared."""
    if message := compiler.complaint(schema.grammar()):
        raise _explain(message, schema, compiler)


def _explain(message: str, schema: Schema, compiler: Compiler) -> GrammarError:
    """llguidance's complaint about a checked schema, with the pointer of what caused it."""
    pointer, message = _culprit(message, schema, compiler)
    keyword = ""
    if found := _UNSUPPORTED.search(message):
        keyword = found[1].replace('"', "").split(", ")[0]
        message = f"the keyword {keyword} is not supported"
    elif "oneOf constraints are not supported" in message:
        keyword = "oneOf"
        message = "oneOf is supported only where the branches visibly exclude each other; use anyOf"
    elif "min/maxProperties only supported" in message:
        keyword = "minProperties"
        if keyword not in schema.survey.schemas.get(pointer, {}):
            keyword = "maxProperties"
        message = f"{keyword} is supported only where all of properties are required"
    elif _RANGE.search(message):
        keyword = _farthest_bound(schema.survey.schemas.get(pointer, {}))
        named = keyword or "a bound of a range"
        message = f"{named} is out of reach: give one between -10^17 and 10^17, or leave it out"
    elif brief(message).startswith("invalid pattern"):
        keyword = "pattern" if "pattern" in schema.survey.schemas.get(pointer, {}) else ""
        message = brief(message)
    if not keyword:
        return GrammarError(brief(message), pointer=pointer)
    finding = Finding(keyword, f"{pointer}/{keyword}", message)
    findings = [finding, *schema.warnings]
    return GrammarError(message, pointer=finding.pointer, findings=findings)


def _farthest_bound(schema: Mapping[str, Any]) -> str:
    """Of those that the schema has, if any."""
    given = [keyword for keyword in BOUNDS if keyword in schema]
    return max(given, key=lambda keyword: abs(schema[keyword]), default="")


def _culprit(message: str, schema: Schema, compiler: Compiler) -> tuple[str, str]:
    """The innermost schema that fails by itself, as a pointer, and how it fails."""
    # Later in the walk means deeper, or further along a chain of references.
    for pointer in list(reversed(schema.survey.schemas))[:_TRIED]:
        alone = dump({"grammars": [{"json_schema": schema.part(pointer)}]})
        if found := compiler.complaint(alone):
            return pointer, found
    return "", message


def _moved(value: Any) -> Any:
    """The schema with its references led to where `_culprit` puts it."""
    if isinstance(value, list):
        return [_moved(item) for item in value]
    if not isinstance(value, dict):
        return value
    moved = {key: _moved(inner) for key, inner in value.items()}
    reference = value.get("$ref")
    if isinstance(reference, str) and reference[:2] in ("#", "#/"):
        moved["$ref"] = _INSIDE + reference[1:]
    return moved
