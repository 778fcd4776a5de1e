"""Prepared schemas held against llguidance, and the causes of its refusals."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from completions.grammars.compiler import DEFAULT_COMPILER, Compiler, Translated
from completions.grammars.complaints import brief, shortened, shown
from completions.grammars.exceptions import Finding, GrammarError
from completions.grammars.json_schema.keywords import BOUNDS, ENFORCED
from completions.grammars.json_schema.pointers import at, escape
from completions.grammars.json_schema.schema import Schema, dump, errors_inside, prepare
from completions.grammars.limits import COMPACT

_UNSUPPORTED = re.compile(r"Unimplemented keys: \[(.*)\]")
_COMPLAINTS: Mapping[str, tuple[tuple[str, ...], str]] = {
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
_TRIED = 100
"""The most schemas compiled one by one to find the one that llguidance refuses."""


def translate(
    value: Mapping[str, Any] | str,
    compiler: Compiler = DEFAULT_COMPILER,
    whitespace: str = COMPACT,
) -> Translated:
    """A grammar of JSON texts that are instances of the schema. Raises GrammarError."""
    schema = checked(value, compiler, whitespace)
    return Translated(schema.grammar(), schema.warnings)


def checked(
    value: Mapping[str, Any] | str,
    compiler: Compiler,
    whitespace: str | int = COMPACT,
    pointer: str = "",
) -> Schema:
    """A schema that llguidance takes. Raises GrammarError.

    The pointers of errors and warnings begin with the pointer to the schema.
    """
    with errors_inside(pointer):
        schema = prepare(value, whitespace, compiler.limits)
        check(schema, compiler)
        return schema.inside(pointer)


def check(schema: Schema, compiler: Compiler) -> None:
    """Raises GrammarError if llguidance refuses a prepared schema."""
    if message := compiler.complaint(schema.grammar()):
        raise _explain(message, schema, compiler)


def _explain(message: str, schema: Schema, compiler: Compiler) -> GrammarError:
    """llguidance's complaint about a checked schema, with the pointer of what caused it."""
    culprit, message = _culprit(message, schema, compiler)
    part = schema.survey.schemas.get(culprit, {})
    pointer = schema.rewritten.original(culprit)
    given = at(schema.given, pointer)
    place, message = _fault(message, part, given if isinstance(given, dict) else part, compiler)
    if not place:
        return GrammarError(message, pointer=pointer)
    pointer = (
        schema.rewritten.with_names(f"{culprit}/{place}") if "/" in place else f"{pointer}/{place}"
    )
    finding = Finding(place.partition("/")[0], pointer, message)
    findings = [finding, *schema.warnings]
    return GrammarError(message, pointer=finding.pointer, findings=findings)


def _fault(
    message: str, part: Mapping[str, Any], given: Mapping[str, Any], compiler: Compiler
) -> tuple[str, str]:
    """The place of a fault in a schema, if it is in a keyword, and what is wrong.

    `given` is what the client wrote where llguidance reads `part`.
    """
    if found := _UNSUPPORTED.search(message):
        keyword = found[1].replace('"', "").split(", ")[0]
        return keyword, f"the keyword {keyword} is not supported; leave it out"
    if (known := _known(message)) is not None:
        candidates, message = known
        return next((each for each in candidates if each in part), candidates[-1]), message
    if message.startswith(_UNSATISFIABLE):
        place, reason = _contradiction(message.removeprefix(_UNSATISFIABLE), given)
        return place, f"no value can match: {reason}"
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
        named = f"{keyword} is {shown(part[keyword])}" if keyword else "a bound of a range is"
        return keyword, f"{named}, out of reach: give one between -10^17 and 10^17, or leave it out"
    if brief(message).startswith("invalid pattern"):
        return _bad_pattern(part, compiler) or ("", brief(message))
    return "", brief(message)


def _contradiction(reason: str, given: Mapping[str, Any]) -> tuple[str, str]:
    """The place and the words for a schema that holds for no value."""
    if keyword := next((each for each in _LISTS if given.get(each) == []), ""):
        return keyword, f"{keyword} is empty; list at least one"
    if found := _REQUIRED.fullmatch(reason):
        place = "required" if found[1] in given.get("required", ()) else ""
        return place, (
            f"{shortened(found[1])} is required, but no value is allowed for it; declare it in "
            "properties, or leave it out of required"
        )
    named = re.findall(r"\b[a-z]+(?:[A-Z][a-z]+)*(?= \()", reason)
    if named and all(each in given for each in named):
        return "", f"{reason}; change one of them"
    keywords = [each for each in given if each in ENFORCED and each != "$ref"]
    if keywords == ["allOf"]:
        return "allOf", "the schemas of allOf contradict each other; change one of them"
    if len(keywords) == 1:
        return keywords[0], f"{keywords[0]} allows no value; change it, or leave it out"
    if len(keywords) > 2:  # a type is seldom what has to change
        keywords = [each for each in keywords if each != "type"]
    *others, last = keywords or ["its keywords"]
    listed = f"{', '.join(others)} and {last}" if others else last
    return "", f"{listed} cannot all hold; change one of them"


def _bad_pattern(part: Mapping[str, Any], compiler: Compiler) -> tuple[str, str] | None:
    """The place of the pattern that llguidance cannot read, and what is wrong with it."""
    patterns = {"pattern": part["pattern"]} if "pattern" in part else {}
    for name in part.get("patternProperties", ()):
        patterns[f"patternProperties/{escape(name)}"] = name
    for place, pattern in patterns.items():
        alone = {"grammars": [{"json_schema": {"type": "string", "pattern": pattern}}]}
        if message := compiler.complaint(dump(alone)):
            return place, brief(message, pattern)
    return None


def _known(message: str) -> tuple[tuple[str, ...], str] | None:
    return next((found for text, found in _COMPLAINTS.items() if text in message), None)


def _culprit(message: str, schema: Schema, compiler: Compiler) -> tuple[str, str]:
    """The innermost schema that fails by itself, as a pointer, and how it fails."""
    # Later in the walk means deeper, or further along a chain of references.
    places = list(reversed(schema.survey.schemas))
    if found := _PROCESSED.search(message):
        target = f"{unquote(found[1])}/"
        places.sort(key=lambda place: not f"{place}/".startswith(target))
    for pointer in places[:_TRIED]:
        alone = dump({"grammars": [{"json_schema": schema.part(pointer)}]})
        if complaint := compiler.complaint(alone):
            return pointer, complaint
    return "", message
