"""Prepared schemas held against llguidance, and the causes of its refusals."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from completions.grammars.compiler import DEFAULT_COMPILER, Compiler, Translation
from completions.grammars.exceptions import Diagnostic, GrammarError
from completions.grammars.json_schema.schema import Schema, dump, prefix_errors, prepare
from completions.grammars.limits import COMPACT
from completions.grammars.messages import explain_error, format_value, truncate
from completions.grammars.schema.keywords import BOUNDS, ENFORCED
from completions.grammars.schema.nodes import SchemaNode
from completions.grammars.schema.pointers import get

_UNSUPPORTED = re.compile(r"Unimplemented keys: \[(.*)\]")
_MESSAGES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "circular references with sibling keys": (
        ("$ref", ""),
        "a $ref that leads back here cannot be combined with other keywords; leave them out",
    ),
    "schema too large": (
        ("allOf", "anyOf", ""),
        "allOf, anyOf and oneOf combine to too many alternatives; list the combinations, or leave "
        "some out",
    ),
    "Invalid URI reference": (
        ("$ref",),
        "this $ref is not a URI; percent-encode spaces and what else a URI cannot hold, as in %20",
    ),
    "is not present in a registry": (
        ("id", "$ref", ""),
        "because of this id, $ref inside it names another document, which does not exist; "
        "leave the id out",
    ),
    "intersection stack level": (
        ("",),
        "allOf, or keywords beside a $ref, combine schemas that lead back to themselves; "
        "write out what they have in common in one of them",
    ),
    "patternProperty regexes": (
        ("patternProperties",),
        "these patterns are too complex to tell apart; give ones that share no names",
    ),
}
"""By a part of llguidance's message: the keywords that may be at fault, the first that the schema
has or else the last, and the message for the client."""
_UNSATISFIABLE = "Unsatisfiable schema: "
_REQUIRED = re.compile(r"required property '(.*)' is unsatisfiable")
_LISTS = ("type", "enum", "anyOf", "oneOf")
"""Keywords whose empty list allows nothing."""
_RANGE = re.compile(r"Failed to generate regex for (integer|float) range")
_PROCESSED = re.compile(r"while processing json-schema:///#(\S*)")
"""The target of the reference in which llguidance found the fault."""
_TRIAL_KEYWORDS = 100
"""The most schemas compiled one by one to find the one that llguidance refuses."""


def translate(
    value: Mapping[str, object] | str,
    compiler: Compiler = DEFAULT_COMPILER,
    whitespace: str = COMPACT,
) -> Translation:
    """Return a grammar of JSON texts that are instances of the schema. Raises GrammarError."""
    schema = check_inside(value, compiler, whitespace)
    return Translation(schema.write_grammar(), schema.warnings)


def check_inside(
    value: Mapping[str, object] | str,
    compiler: Compiler,
    whitespace: str | int,
    pointer: str = "",
    *,
    compiles: bool = True,
) -> Schema:
    """Return a schema that llguidance takes. Raises GrammarError. Without `compiles`, only the
    compilation of the whole grammar shows whether it does.

    The pointers of errors and warnings begin with the pointer to the schema.
    """
    with prefix_errors(pointer):
        schema = prepare(value, whitespace, compiler.limits)
        if compiles:
            check(schema, compiler)
        return schema.move_inside(pointer)


def check(schema: Schema, compiler: Compiler) -> None:
    """Raise GrammarError if llguidance refuses a prepared schema."""
    if message := compiler.find_error(schema.write_grammar()):
        raise _explain(message, schema, compiler)


def _explain(message: str, schema: Schema, compiler: Compiler) -> GrammarError:
    """Return llguidance's message about a checked schema, with the pointer of what caused it."""
    culprit, message = _find_culprit(message, schema, compiler)
    pointer = schema.rewritten.to_original(culprit.pointer)
    original = get(schema.original, pointer)
    path, message = _find_fault(
        message, culprit, original if isinstance(original, dict) else culprit.keywords, compiler
    )
    if not path:
        return GrammarError(message, pointer=pointer)
    pointer = (
        schema.rewritten.replace_names(f"{culprit.pointer}/{path}")
        if "/" in path
        else f"{pointer}/{path}"
    )
    diagnostic = Diagnostic(path.partition("/")[0], pointer, message)
    diagnostics = [diagnostic, *schema.warnings]
    return GrammarError(message, pointer=diagnostic.pointer, diagnostics=diagnostics)


def _find_fault(
    message: str, node: SchemaNode, original: Mapping[str, object], compiler: Compiler
) -> tuple[str, str]:
    """Return the place of a fault in a schema, if it is in a keyword, and what is wrong.

    `original` is what the client wrote where llguidance reads `node`.
    """
    part = node.keywords
    if match := _UNSUPPORTED.search(message):
        keyword = match[1].replace('"', "").split(", ")[0]
        return keyword, f"the keyword {keyword} is not supported; leave it out"
    if (fault := _match_message(message)) is not None:
        candidates, message = fault
        return next((each for each in candidates if each in part), candidates[-1]), message
    if message.startswith(_UNSATISFIABLE):
        path, reason = _explain_contradiction(message.removeprefix(_UNSATISFIABLE), original)
        return path, f"no value can match: {reason}"
    if "min/maxProperties only supported" in message:
        keyword = "minProperties" if "minProperties" in part else "maxProperties"
        advice = "list them in required"
        return (
            keyword,
            f"{keyword} is supported only where all of properties are required; {advice}",
        )
    if _RANGE.search(message):
        bounds = {name: abs(part[name]) for name in BOUNDS if name in part}
        keyword = max(bounds, key=bounds.__getitem__, default="")
        bound = (
            f"{keyword} is {format_value(part[keyword])}" if keyword else "a bound of a range is"
        )
        return keyword, f"{bound}, out of reach: give one between -10^17 and 10^17, or leave it out"
    if explain_error(message).startswith("invalid pattern"):
        return _find_bad_pattern(node, compiler) or ("", explain_error(message))
    return "", explain_error(message)


def _explain_contradiction(reason: str, original: Mapping[str, Any]) -> tuple[str, str]:
    """Return the place and the words for a schema that holds for no value."""
    if keyword := next((each for each in _LISTS if original.get(each) == []), ""):
        return keyword, f"{keyword} is empty; list at least one"
    if match := _REQUIRED.fullmatch(reason):
        path = "required" if match[1] in original.get("required", ()) else ""
        return path, (
            f"{truncate(match[1])} is required, but no value is allowed for it; declare it in "
            "properties, or leave it out of required"
        )
    names = re.findall(r"\b[a-z]+(?:[A-Z][a-z]+)*(?= \()", reason)
    if names and all(each in original for each in names):
        return "", f"{reason}; change one of them"
    keywords = [each for each in original if each in ENFORCED and each != "$ref"]
    if keywords == ["allOf"]:
        return "allOf", "the schemas of allOf contradict each other; change one of them"
    if len(keywords) == 1:
        return keywords[0], f"{keywords[0]} allows no value; change it, or leave it out"
    if len(keywords) > 2:  # a type is seldom what has to change
        keywords = [each for each in keywords if each != "type"]
    *others, last = keywords or ["its keywords"]
    enumeration = f"{', '.join(others)} and {last}" if others else last
    return "", f"{enumeration} cannot all hold; change one of them"


def _find_bad_pattern(node: SchemaNode, compiler: Compiler) -> tuple[str, str] | None:
    """Return the place of the pattern that llguidance cannot read, and what is wrong with it."""
    for path, pattern in node.iter_patterns():
        alone = {"grammars": [{"json_schema": {"type": "string", "pattern": pattern}}]}
        if message := compiler.find_error(dump(alone)):
            return path, explain_error(message, pattern)
    return None


def _match_message(message: str) -> tuple[tuple[str, ...], str] | None:
    return next((fault for text, fault in _MESSAGES.items() if text in message), None)


def _find_culprit(message: str, schema: Schema, compiler: Compiler) -> tuple[SchemaNode, str]:
    """Return the innermost schema that fails by itself, and how it fails."""
    # Later in the walk means deeper, or further along a chain of references.
    nodes = list(reversed(schema.survey.nodes.values()))
    if match := _PROCESSED.search(message):
        target = f"{unquote(match[1])}/"
        nodes.sort(key=lambda node: not f"{node.pointer}/".startswith(target))
    for node in nodes[:_TRIAL_KEYWORDS]:
        alone = dump({"grammars": [{"json_schema": schema.make_part(node)}]})
        if error := compiler.find_error(alone):
            return node, error
    return schema.survey.document.root, message
