"""The nodes of XGrammar's `format` tree: text, JSON, grammars, tokens, and nodes that combine them.

A function for each type checks the fields of a node and returns the function that lowers it.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from completions.grammars import json_schema, regex
from completions.grammars.complaints import shown
from completions.grammars.exceptions import GrammarError, UnknownNodeError
from completions.grammars.limits import check_shape
from completions.grammars.structural_tag import json_nodes, tags
from completions.grammars.structural_tag.json_object import JSONObject, Readers
from completions.grammars.structural_tag.lowering import Ends, Lowering, Node
from completions.grammars.structural_tag.parameters import STYLES, Parameters, json_symbol
from completions.grammars.structural_tag.parts import (
    ANY,
    Embedded,
    Mark,
    OneToken,
    Opaque,
    Part,
    Terminal,
    alternatives,
    chain,
    loop,
)


def as_object(schema: Any) -> Mapping[str, Any]:
    """A schema as an object: `true` and null allow any JSON, `false` none."""
    if isinstance(schema, dict):
        return schema
    return {"enum": []} if schema is False else {}


def json_node(
    schema: Any,
    pointer: str,
    style: str = "json",
    spaces: int | None = None,
    place: str = "",
    or_object: bool = False,
) -> Node:
    """JSON that fits the schema at a pointer, or parameters in a model's own tags, by `style`.

    `spaces` is the most whitespace characters in a row; None means the request's own whitespace.
    Errors name `place`, a path in the request, instead of the field. With `or_object`, a schema
    that cannot be expressed becomes any object, and its place is noted in `lowering.loosened`.
    """
    given = as_object(schema)

    def lowered(schema: Mapping[str, Any], lowering: Lowering) -> Part:
        whitespace = lowering.whitespace if spaces is None else spaces
        checked = json_schema.checked(schema, lowering.compiler, whitespace, pointer)
        lowering.warnings += checked.warnings
        if style == "json":
            return json_symbol(checked.compiled, checked.compiled.get("type"))
        return Parameters(checked, pointer, style, lowering).lower()

    def lower(lowering: Lowering, ends: Ends) -> Part:
        try:
            return lowered(given, lowering)
        except GrammarError as error:
            if or_object:
                lowering.loosened.append(place)
                return lowered(json_nodes.ANY_OBJECT, lowering)
            error.field = place
            raise

    return lower


def _json_schema(given: JSONObject, place: str = "", *, or_object: bool = False) -> Node:
    schema = _schema(given)
    style = given.text("style", "json")
    if style != "json" and style not in STYLES:
        known = ", ".join(["json", *STYLES])
        message = f"the style {style[:64]} is not supported; use one of: {known}"
        raise UnknownNodeError(message, pointer=f"{given.pointer}/style")
    if given.flag("any_order"):
        raise given.error(
            "any_order is not supported; leave it out: properties keep their order", "/any_order"
        )
    if given.array("excludes", []):
        raise given.error(
            "excludes is not supported in JSON; give the strings of the schema a pattern",
            "/excludes",
        )
    spaces = given.count("max_whitespace_cnt", None)
    # In an answer, pointers start at the schema's place in the request.
    pointer = "" if place else f"{given.pointer}/json_schema"
    return json_node(schema, pointer, style, spaces, place, or_object)


def _qwen_xml_parameter(given: JSONObject) -> Node:
    return json_node(_schema(given), f"{given.pointer}/json_schema", "qwen_xml")


def _schema(given: JSONObject) -> Any:
    schema = given.take("json_schema")
    if not isinstance(schema, dict | bool):
        message = f"json_schema must be an object or a boolean, not {shown(schema)}"
        raise given.error(message, "/json_schema")
    return schema


def _const_string(given: JSONObject) -> Node:
    value = given.text("value")
    return lambda lowering, ends: lowering.spelling.text(value)


def _grammar(given: JSONObject) -> Node:
    part = Embedded(given.text("grammar"), f"{given.pointer}/grammar")
    return lambda lowering, ends: part


def _regex(given: JSONObject) -> Node:
    pattern = given.text("pattern")

    def lower(lowering: Lowering, ends: Ends) -> Part:
        try:
            body, nullable = regex.fragment(pattern, lowering.compiler)
        except GrammarError as error:
            error.pointer = f"{given.pointer}/pattern"
            raise
        return Terminal(body, nullable, is_open=True, pointer=given.pointer)

    return lower


def _any_text(given: JSONObject, *, mixed: bool = False) -> Node:
    if given.has("max_tokens"):
        message = "max_tokens is not supported in any_text; use max_chars, or any_tokens"
        raise given.error(message, "/max_tokens")
    given.take("max_tokens", None)
    excludes, most = given.texts("excludes", []), given.count("max_chars", None)
    return lambda lowering, ends: lowering.spelling.free_text(
        given.pointer, (*excludes, *_strings(ends)), most, mixed=mixed
    )


def _strings(ends: Ends) -> Iterator[str]:
    return (end for end in ends if isinstance(end, str))


def _token(given: JSONObject) -> Node:
    token = given.token(given.take("token"), "/token")
    return lambda lowering, ends: lowering.token(given.pointer, token)


def _exclude_token(given: JSONObject) -> Node:
    excluded = given.tokens("exclude_tokens", [])
    return lambda lowering, ends: lowering.other_tokens(given.pointer, excluded, ends, 1, 1)


def _any_tokens(given: JSONObject) -> Node:
    excluded, most = given.tokens("exclude_tokens", []), given.count("max_tokens", None)
    return lambda lowering, ends: lowering.other_tokens(given.pointer, excluded, ends, 0, most)


def _joined(given: JSONObject, join: Callable[[Sequence[Part]], Part]) -> Node:
    elements = given.nodes("elements")
    return lambda lowering, ends: join([lower(lowering, ends) for lower in elements])


def _repeat(given: JSONObject) -> Node:
    least, most = given.count("min"), given.count("max", low=-1)
    if 0 <= most < least:
        message = f"max is {most}, less than min, which is {least}; -1 means any number"
        raise given.error(message, "/max")
    return _repeated(given, least, None if most < 0 else most)


def _repeated(given: JSONObject, least: int, most: int | None) -> Node:
    """The content of a node `least` to `most` times; None means any number."""
    content = given.node("content")

    def lower(lowering: Lowering, ends: Ends) -> Part:
        bound = lowering.compiler.limits.max_repetition
        if max(least, most or 0) > bound:
            raise GrammarError(
                f"repeated more than {bound} times; give a smaller max", pointer=given.pointer
            )
        part = loop(content(lowering, ends), least, most)
        if isinstance(part, Terminal):  # llguidance multiplies the states of its lexer
            try:
                check_shape(part.expression, lowering.compiler.limits, is_regex=False)
            except GrammarError as error:
                raise GrammarError(error.message, pointer=given.pointer) from error
        return part

    return lower


READERS: Readers = {
    "const_string": _const_string,
    "json_schema": _json_schema,
    "qwen_xml_parameter": _qwen_xml_parameter,
    "grammar": _grammar,
    "regex": _regex,
    "any_text": _any_text,
    "token": _token,
    "exclude_token": _exclude_token,
    "any_tokens": _any_tokens,
    "sequence": partial(_joined, join=chain),
    "or": partial(_joined, join=alternatives),
    "optional": partial(_repeated, least=0, most=1),
    "star": partial(_repeated, least=0, most=None),
    "plus": partial(_repeated, least=1, most=None),
    "repeat": _repeat,
    "tag": lambda given: tags.read_tag(given).lower,
    "triggered_tags": tags.triggered_tags,
    "token_triggered_tags": tags.token_triggered_tags,
    "tags_with_separator": tags.tags_with_separator,
    "dispatch": tags.dispatch,
    "token_dispatch": tags.token_dispatch,
}


def _mark(given: JSONObject) -> Node:
    text, cuts = given.text("value"), given.flag("cuts")

    def lower(lowering: Lowering, ends: Ends) -> Part:
        spelled = lowering.spelling.text(text)
        return spelled if isinstance(spelled, OneToken) else Mark(text, cuts)

    return lower


def _constrained(given: JSONObject) -> Node:
    def lower(lowering: Lowering, ends: Ends) -> Part:
        assert lowering.constrained is not None
        translated = lowering.constrained()
        lowering.warnings += translated.warnings
        lowering.grammars += _named("constraint", translated.grammar)
        return Opaque("@constraint", ANY)

    return lower


def _named(name: str, grammar: str) -> list[dict[str, Any]]:
    """A translated grammar as entries of llguidance's list, of which the first has the name."""
    if not grammar.lstrip().startswith("{"):
        return [{"name": name, "lark_grammar": grammar}]
    first, *rest = json.loads(grammar)["grammars"]
    return [{**first, "name": name}, *rest]


ANSWER_READERS: Readers = {
    **READERS,
    "json_schema": lambda given: _json_schema(
        given, given.text("place"), or_object=given.flag("or_object")
    ),
    "mixed_text": partial(_any_text, mixed=True),
    "mixed_triggered_tags": partial(tags.triggered_tags, mixed=True),
    "mark": _mark,
    "constrained": _constrained,
}
"""The nodes of a chat's answer, some of which no client can send."""
