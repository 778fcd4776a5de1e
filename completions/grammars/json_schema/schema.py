"""JSON Schemas in the form that llguidance accepts."""

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from urllib.parse import quote

from completions.contract import strict_json
from completions.grammars.exceptions import Diagnostic, GrammarError
from completions.grammars.json_schema import keyword_order, pattern_lowering, rewriting
from completions.grammars.json_schema.survey import Survey, survey_schema
from completions.grammars.limits import (
    COMPACT,
    DEFAULT_LIMITS,
    FLEXIBLE,
    Limits,
    check_bytes,
    check_depth,
    check_shape,
    find_longest_chain,
    get_children,
    iter_values,
)
from completions.grammars.messages import format_value, truncate
from completions.grammars.patterns.reader import PatternSyntaxError, read
from completions.grammars.patterns.rust import Escapes
from completions.grammars.schema.keywords import SchemaObject
from completions.grammars.schema.nodes import Document, SchemaNode
from completions.grammars.schema.pointers import escape

OPTIONS = "x-guidance"
"""The key under which a schema holds llguidance's compile options."""
_SPACES = {COMPACT: 0, FLEXIBLE: 32}
"""Most white space characters in a row. Bounded, so that a model cannot write them forever."""
_MAX_FORCED_ITEMS = 2_100
"""The most items in a row that leave the model no choice: llguidance writes them in one step, whose
limit is reached at some 2,145 (`contract/llguidance_limits.py`)."""
_ROOT = "root"
_INSIDE = f"#/$defs/{_ROOT}"
_CONTROL = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
"""A character that JSON writes with digits only, unlike a newline or a tab."""
_CONTROL_IN_JSON = re.compile(r"\\u(00[01][0-9a-f])")
_GROWTH = 4
"""How many times as long as the client's limit a schema may become by the lowering of patterns."""
_CONTROL_ESCAPE = re.compile(
    r"\\(?:x(?:[01]|7[fF])|u00(?:[01]|7[fF])|[xu]\{0*(?:[01]?[0-9a-fA-F]|7[fF])\}|[cv0])"
)
"""Such a character in a pattern."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A checked schema with options for llguidance, and warnings of what is ignored."""

    compiled: SchemaObject
    warnings: list[Diagnostic]
    survey: Survey
    rewritten: rewriting.Rewritten
    original: Mapping[str, object]
    """What the client wrote."""

    def move_inside(self, pointer: str) -> "Schema":
        """Return the same schema, with the pointers of its warnings prefixed by a pointer."""
        moved = [replace(each, pointer=pointer + each.pointer) for each in self.warnings]
        return replace(self, warnings=moved)

    def write_grammar(self) -> str:
        return dump({"grammars": [{"json_schema": self.compiled}]})

    def make_part(self, node: SchemaNode, types: Sequence[str] = ()) -> SchemaObject:
        """Return one schema inside this one, by itself; `types`, if any, replaces its own types."""
        narrowed = {**node.keywords, "type": list(types)} if types else dict(node.keywords)
        if '"$ref":' in dump(node.keywords):
            reference: SchemaObject = {"$ref": _INSIDE + quote(node.pointer)}
            narrowed = {"allOf": [reference, {"type": list(types)}]} if types else reference
            schemas = {id(each.schema) for each in self.survey.nodes.values()}
            root = self.survey.document.root
            narrowed["$defs"] = {_ROOT: _move_references(root.schema, schemas)}
        return {**narrowed, OPTIONS: self.compiled[OPTIONS]}


def load(text: str) -> object:
    """Return the value of a JSON text. Raises GrammarError with line and column."""
    try:
        return strict_json.loads(text)
    except strict_json.StrictJSONError as error:
        message = f"the string does not hold JSON: {error.reason}"
        raise GrammarError(message, error.line, error.column) from error


def prepare(
    value: Mapping[str, object] | str,
    whitespace: str | int = COMPACT,
    limits: Limits = DEFAULT_LIMITS,
) -> Schema:
    """Check a schema within the limits. Raises GrammarError for the first keyword refused.

    `whitespace` is `compact`, `flexible`, or the most whitespace characters in a row.
    """
    original = _read(value, limits)
    schema, seen = _survey(original, limits)
    _check_syntax(seen)
    if not _write_spaces(whitespace):
        _check_forced_items(seen)
    rewritten = rewriting.rewrite(seen.document, seen.nodes)
    _raise_refusals([_make_diagnostic(error) for error in rewritten.refusals], seen)
    if rewritten.is_changed:
        check_bytes(dump(schema), limits)
        warnings = seen.warnings
        seen = survey_schema(schema, limits)
        _raise_refusals(seen.refusals, seen)
        seen.warnings = warnings
    escapes = _choose_escapes(schema, seen)
    seen = _lower_patterns(schema, seen, rewritten, escapes, limits)
    keyword_order.arrange(node.keywords for node in seen.nodes.values())
    compiled = {**schema, OPTIONS: _make_options(whitespace, escapes)}
    return Schema(compiled, seen.warnings, seen, rewritten, original)


def screen(value: Mapping[str, object] | str, limits: Limits) -> None:
    """Raise GrammarError for a schema beyond the static caps, or with a keyword that is refused."""
    _survey(_read(value, limits), limits)


def _read(value: Mapping[str, object] | str, limits: Limits) -> Mapping[str, object]:
    """Return a schema that may be given as a text. Raises GrammarError."""
    if not isinstance(value, str):
        return value
    check_bytes(value, limits)
    read = load(value)
    if not isinstance(read, dict):
        raise GrammarError(f"the string must hold a JSON object, not {format_value(read)}")
    return read


def _survey(value: Mapping[str, object], limits: Limits) -> tuple[SchemaObject, Survey]:
    """Return a copy of a schema without the keywords that have no effect, and the result of the
    walk over it. Takes roughly linear time. Raises GrammarError."""
    schema = dict(value)
    check_depth(schema, limits)
    check_bytes(dump(schema), limits)
    _check_chains(schema, limits)
    schema = copy.deepcopy(schema)
    seen = survey_schema(schema, limits)
    _raise_refusals(seen.refusals, seen)
    _check_patterns(seen, limits)
    return schema, seen


def _raise_refusals(refusals: list[Diagnostic], seen: Survey) -> None:
    if refusals:
        first = refusals[0]
        diagnostics = [*refusals, *seen.warnings]
        raise GrammarError(first.message, pointer=first.pointer, diagnostics=diagnostics)


def _raise_refusal(seen: Survey, node: SchemaNode, path: str, message: str) -> None:
    """Raise GrammarError for what stands at a path in a schema."""
    keyword = path.partition("/")[0]
    _raise_refusals([Diagnostic(keyword, f"{node.pointer}/{path}", message)], seen)


def _make_diagnostic(error: rewriting.CannotWriteError) -> Diagnostic:
    message = f"{error.keyword} cannot be enforced here: {error.advice}"
    return Diagnostic(error.keyword, error.pointer, message)


def _check_patterns(seen: Survey, limits: Limits) -> None:
    bound = limits.max_repetition
    for node in seen.nodes.values():
        if "pattern" in node.keywords and (minimum := node.get("minLength", 0)) > bound:
            message = f"minLength is {minimum}; beside a pattern it may be at most {bound}"
            raise GrammarError(message, pointer=f"{node.pointer}/minLength")
        for path, pattern in node.iter_patterns():
            try:
                check_shape(pattern, limits, is_regex=True)
            except GrammarError as error:
                raise GrammarError(error.message, pointer=f"{node.pointer}/{path}") from error


def _check_syntax(seen: Survey) -> None:
    """Raise GrammarError for a pattern that is not one of ECMA-262."""
    for node in seen.nodes.values():
        for path, pattern in node.iter_patterns():
            try:
                read(pattern)
            except PatternSyntaxError as error:
                message = f'invalid pattern "{truncate(pattern)}": {error}'
                _raise_refusal(seen, node, path, message)


def _lower_patterns(
    schema: SchemaObject,
    seen: Survey,
    rewritten: rewriting.Rewritten,
    escapes: Escapes,
    limits: Limits,
) -> Survey:
    """Lower all patterns in place. Returns the survey of the result. Raises GrammarError."""
    changed: list[tuple[SchemaObject, dict[str, str]]] = []
    for pointer, node in seen.nodes.items():
        try:
            if names := pattern_lowering.apply(node.keywords, escapes):
                changed.append((node.keywords, names))
        except pattern_lowering.NotLoweredError as error:
            path = f"{rewritten.to_original(pointer)}/{error.place}"
            message = f"this pattern cannot be enforced: {error}"
            _raise_refusals([Diagnostic(error.place.partition("/")[0], path, message)], seen)
    check_bytes(dump(schema), replace(limits, max_bytes=_GROWTH * limits.max_bytes))
    if not changed:
        return seen
    rewriting.reach(seen.document)
    renamed = survey_schema(schema, limits)
    renamed.warnings = seen.warnings
    pointers = {id(node.schema): pointer for pointer, node in renamed.nodes.items()}
    for each, names in changed:
        path = f"{pointers[id(each)]}/patternProperties"
        rewritten.names |= {f"{path}/{escape(new)}": escape(old) for new, old in names.items()}
    return renamed


def _check_forced_items(seen: Survey) -> None:
    """Raise GrammarError for an array with too many items of one value."""
    for node in seen.nodes.values():
        minimum = node.get("minItems", 0)
        forced = minimum - len(node.prefix)
        may_be_array = "array" in (node.types or ["array"])
        if forced > _MAX_FORCED_ITEMS and may_be_array and _has_one_value(node.rest):
            message = (
                f"minItems is {minimum}; where items has one value only, {_MAX_FORCED_ITEMS} may "
                "be forced. Lower it, or send the array in the prompt"
            )
            _raise_refusal(seen, node, "minItems", message)


def _has_one_value(item: SchemaNode | None) -> bool:
    """Return whether all values of a schema are evidently equal."""
    visited = set()
    while item is not None and item.pointer not in visited:
        if item.types == ["null"]:
            return True
        if item.values is not None:
            return len(item.values) == 1
        visited.add(item.pointer)
        item = item.target
    return False


def _write_spaces(whitespace: str | int) -> int:
    return _SPACES[whitespace] if isinstance(whitespace, str) else whitespace


def _make_options(whitespace: str | int, escapes: Escapes) -> SchemaObject:
    spaces = _write_spaces(whitespace)
    options: SchemaObject = {"whitespace_flexible": False}
    if spaces:
        options = {"whitespace_pattern": rf"[ \t\n\r]{{1,{spaces}}}"}
    if not escapes.numeric:
        options["json_allowed_escapes"] = 'nrbtf\\"'
    return options


def _choose_escapes(schema: Mapping[str, object], seen: Survey) -> Escapes:
    """Choose the escapes that strings may contain. llguidance does not compare an escape such as
    \\u0061 with the declared names, so numeric escapes are left out, unless a text must hold
    control characters. Raises GrammarError."""
    controls = frozenset(int(digits, 16) for digits in _CONTROL_IN_JSON.findall(dump(schema)))
    nodes = seen.nodes.values()
    if not any(map(_has_open_names, nodes)):
        return Escapes(True, controls)
    in_texts = any(map(_has_control_texts, nodes))
    incomplete = [node for node in nodes if _has_excluded_names(node)]
    if not incomplete:
        return Escapes(in_texts or any(map(_has_control_patterns, nodes)), controls)
    if in_texts:
        message = (
            "names with any control character cannot be told from other names beside values that "
            "hold control characters; add additionalProperties false, or exclude these characters "
            "from the patterns, as in [^\\x00-\\x1f]"
        )
        _raise_refusal(seen, incomplete[0], "patternProperties", message)
    return Escapes(False, controls)


def _has_open_names(node: SchemaNode) -> bool:
    declares = any(map(node.get, ("properties", "patternProperties", "required")))
    return declares and node.get("additionalProperties") is not False


def _has_excluded_names(node: SchemaNode) -> bool:
    """Return whether a pattern's lowered form lacks names that only numeric escapes can write. As
    names without a pattern, they would get `additionalProperties`."""
    return any(map(pattern_lowering.is_incomplete, node.get("patternProperties", ())))


def _has_control_texts(node: SchemaNode) -> bool:
    """Return whether a value or a name has control characters; in a description they do not
    count."""
    names = [*node.get("properties", ()), *node.required]
    texts = _iter_texts([names, node.get("enum"), node.get("const")])
    return any(map(_CONTROL.search, texts))


def _has_control_patterns(node: SchemaNode) -> bool:
    return any(
        _CONTROL.search(pattern) or _CONTROL_ESCAPE.search(pattern)
        for _, pattern in node.iter_patterns()
    )


def _iter_texts(value: object) -> Iterator[str]:
    """Yield every string and every name in a JSON value."""
    for each in iter_values(value):
        yield from each if isinstance(each, dict) else [each] if isinstance(each, str) else []


def dump(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise GrammarError("a number is too large; give one below 1.8e308") from error


def _check_chains(root: SchemaObject, limits: Limits) -> None:
    """Raise GrammarError for long chains of references, along which llguidance recurses."""
    used: dict[int, list[int]] = {}
    document = Document(root)
    waiting: list[object] = [root]
    while waiting:
        value = waiting.pop()
        if id(value) in used:
            continue
        inside = [child for child in get_children(value) if isinstance(child, dict | list)]
        reference = value.get("$ref") if isinstance(value, dict) else None
        target = document.resolve(reference) if isinstance(reference, str) else None
        inside += [target.keywords] if target else []
        used[id(value)] = [id(child) for child in inside]
        waiting += inside
    if find_longest_chain(used) > limits.max_chain:
        raise GrammarError(
            f"$ref chains lead through more than {limits.max_chain} levels; refer to the last one"
        )


@contextmanager
def prefix_errors(pointer: str) -> Iterator[None]:
    """Prefix the pointers of an error and of its diagnostics with a pointer."""
    try:
        yield
    except GrammarError as error:
        error.prefix_pointer(pointer)
        raise


def _move_references(value: object, schemas: Set[int]) -> object:
    """Return the schema with references to the place where `Schema.part` puts it. `schemas` has the
    ids of all schemas: in any other object, such as one in an `enum`, `$ref` is data."""
    if isinstance(value, list):
        return [_move_references(item, schemas) for item in value]
    if not isinstance(value, dict):
        return value
    moved = {key: _move_references(inner, schemas) for key, inner in value.items()}
    reference = value.get("$ref")
    if id(value) in schemas and isinstance(reference, str) and reference[:2] in ("#", "#/"):
        moved["$ref"] = _INSIDE + reference[1:]
    return moved
